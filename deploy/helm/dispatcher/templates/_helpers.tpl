{{- define "dispatcher.name" -}}
{{- if contains "dispatcher" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-dispatcher" (.Release.Name | trunc 29 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{/* Of its Role in a namespace: elsewhere another release of the same name may have one, too. */}}
{{- define "dispatcher.role" -}}
{{- $name := include "dispatcher.name" .root -}}
{{- if .namespace -}}{{- $name = printf "%s-%s" .root.Release.Namespace $name | trunc 63 | trimSuffix "-" -}}{{- end -}}
{{- $name -}}
{{- end -}}

{{- define "dispatcher.account" -}}
{{- .Values.serviceAccount.name | default (include "dispatcher.name" .) -}}
{{- end -}}

{{- define "dispatcher.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}

{{- define "dispatcher.selector" -}}
app.kubernetes.io/name: dispatcher
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "dispatcher.chart" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "dispatcher.labels" -}}
{{ include "dispatcher.selector" . }}
{{ include "dispatcher.chart" . }}
{{- end -}}

{{/* Stopping takes preStop (5), dispatch.drain_s, journals made durable (30), open HTTP requests (5); and a margin. */}}
{{- define "dispatcher.grace" -}}
{{- $drain := 300 -}}
{{- with .dispatch -}}{{- $drain = .drain_s | default 300 -}}{{- end -}}
{{- $drain | ceil | int | add 60 -}}
{{- end -}}

{{- define "dispatcher.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "dispatcher.placement" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* In place of the image's own settings, which would win over the file. */}}
{{- define "dispatcher.environment" -}}
- {name: DISPATCHER_API__HOST, value: ""}
- {name: TMPDIR, value: /tmp}
{{- end -}}

{{/* Of two of a name the last one counts: the user's. */}}
{{- define "dispatcher.serverKey" -}}
{{ include "dispatcher.environment" . }}
- name: DISPATCHER_API_KEY
  valueFrom: {secretKeyRef: {name: {{ .Values.secret }}, key: server-api-key, optional: true}}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* What every pod has: room for temporary files, and what the user mounts, such as certificates. */}}
{{- define "dispatcher.mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "dispatcher.volumes" -}}
- name: tmp
  emptyDir: {}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
