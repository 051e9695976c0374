{{/* Prometheus's jobs are called like the Service: alerts want names that begin with jetstream. */}}
{{- define "jetstream.name" -}}
{{- if hasPrefix "jetstream" .Release.Name }}{{ .Release.Name }}{{ else }}jetstream-{{ .Release.Name }}{{ end }}
{{- end }}

{{- define "jetstream.labels" -}}
app.kubernetes.io/name: jetstream
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
