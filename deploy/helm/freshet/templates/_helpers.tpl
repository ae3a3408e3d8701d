{{- define "freshet.labels" -}}
app.kubernetes.io/part-of: freshet
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
