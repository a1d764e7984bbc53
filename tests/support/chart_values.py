"""Values of the chart: such as users set, and such as cannot work."""

KEYS = [{"name": "ann", "role": "admin", "hash": "sha256:" + "0" * 64}]
SEVERAL = {
    "several": {"enabled": True},
    "service": {"replicas": 3},
    "config": {"storage": {"url": "s3://bucket/dispatcher"}},
}
VALUES = {
    "single": {},
    "several": SEVERAL,
    "several without migration": {**SEVERAL, "several": {"enabled": True, "migrate": False}},
    "job": {"service": {"enabled": False}, "job": {"enabled": True}},
    "a run": {"job": {"enabled": True, "command": "run", "input": "/data/in.jsonl", "files": {}}},
    "monitoring": {
        "monitoring": {
            "serviceMonitor": {"enabled": True},
            "podMonitor": {"enabled": True},
            "rules": {"enabled": True},
        }
    },
    "the service's list": {
        "monitoring": {
            "serviceMonitor": {"enabled": True},
            "scrapeConfig": {"enabled": True},
            "rules": {"enabled": True},
        }
    },
    "job with monitoring": {
        "service": {"enabled": False},
        "job": {"enabled": True},
        "monitoring": {"serviceMonitor": {"enabled": True}},
    },
    "vllm": {"vllm": {"enabled": True}},
    "vllm by keda": {"vllm": {"enabled": True, "autoscaling": {"kind": "keda"}}},
    "vllm by keda, of one fleet": {
        "vllm": {"enabled": True, "autoscaling": {"kind": "keda", "matchers": 'namespace="gpu"'}}
    },
    "vllm by an autoscaler": {"vllm": {"enabled": True, "autoscaling": {"kind": "hpa"}}},
    "another namespace's servers": {
        "config": {"discovery": {"kubernetes": {"namespace": "models"}}},
        "rbac": {"namespaces": ["models", "more"]},
    },
    "nothing extra": {
        "networkPolicy": {"enabled": False},
        "disruptionBudget": {"enabled": False},
        "rbac": {"create": False},
        "serviceAccount": {"create": False, "name": "mine"},
    },
    "users that the cluster gives": {
        **SEVERAL,
        "job": {"enabled": True},
        "podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None},
    },
    "everything set": {
        "image": {"repository": "example/d", "tag": "2", "pullSecrets": [{"name": "pull"}]},
        "secret": "other",
        "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "host": "dispatcher.example",
            "tlsSecret": "certificate",
            "annotations": {"a": "b"},
        },
        "volume": {"existingClaim": "mine"},
        "job": {"enabled": True, "volume": {"size": "1Ti", "storageClass": "fast"}},
        "serviceAccount": {"annotations": {"role": "x"}},
        "networkPolicy": {"extraEgress": [{"ports": [{"port": 8000, "protocol": "TCP"}]}]},
        "monitoring": {
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "rules": {"enabled": True, "labels": {"release": "prometheus"}},
        },
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "extraEnvFrom": [{"secretRef": {"name": "more"}}],
        "extraVolumes": [{"name": "authority", "secret": {"secretName": "authority"}}],
        "extraVolumeMounts": [{"name": "authority", "mountPath": "/etc/authority", "readOnly": True}],
        "podAnnotations": {"a": "b"},
        "podLabels": {"team": "x"},
        "nodeSelector": {"pool": "cpu"},
        "tolerations": [{"key": "cpu", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "batch",
        "vllm": {
            "enabled": True,
            "nodeSelector": {"gpu": "h100"},
            "extraArgs": ["--max-num-seqs", "256"],
            "modelsClaim": "mine",
            "runtimeClassName": "nvidia",
            "extraEnv": [{"name": "HF_HUB_OFFLINE", "value": "1"}],
        },
    },
}
BAD_VALUES = {
    "several pods on one volume": ({"service": {"replicas": 3}}, "several.enabled"),
    "several pods without a store": ({"several": {"enabled": True}}, "storage/url"),
    "a service that only its pod reaches": ({"config": {"api": {"host": "127.0.0.1"}}}, "api/host"),
    "keys in the values": ({"config": {"api": {"keys": KEYS}}}, "api/keys"),
    "a password in the values": ({"config": {"queue": {"url": "postgresql://d:word@db/q"}}}, "queue/url"),
    "a servers' key in the values": ({"config": {"api_key": "word"}}, "config/api_key"),
    "one in the job's": ({"job": {"config": {"api_key": "word"}}}, "job/config/api_key"),
    "root": ({"podSecurityContext": {"runAsNonRoot": False}}, "runAsNonRoot"),
    "a misspelt value": ({"replicaCount": 3}, "replicaCount"),
    "no number": ({"service": {"replicas": "x"}}, "replicas"),
    "an unknown scaler": ({"vllm": {"autoscaling": {"kind": "vpa"}}}, "kind"),
    "no size": ({"volume": {"size": "big"}}, "size"),
    "no clients, which would be all": ({"networkPolicy": {"clients": []}}, "clients"),
    "no servers, which would be all": ({"networkPolicy": {"servers": []}}, "servers"),
    "a number as a variable": ({"extraEnv": [{"name": "DISPATCHER_POOL__STALL_S", "value": 60}]}, "value"),
    "a name that no Service may have": ({"vllm": {"name": "7b.example"}}, "vllm/name"),
    "servers that nobody finds": ({"vllm": {"enabled": True, "name": "llama"}}, "nobody would find"),
    "an Ingress of no host": ({"ingress": {"enabled": True}}, "ingress.host"),
    "servers that are scraped twice": (
        {"monitoring": {"podMonitor": {"enabled": True}, "scrapeConfig": {"enabled": True}}},
        "twice",
    ),
}
