"""The service's face: HTTP routes. They parse, ask the layers below, and answer."""
