{{- define "berth.name" -}}
{{- default "berth-installer" .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "berth.labels" -}}
app.kubernetes.io/name: {{ include "berth.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "berth.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- /* The values that the installer reads. A runtime from an image is mounted, a runtime on the node is below /host. */ -}}
{{- define "berth.values" -}}
{{- $runtimes := list -}}
{{- range $handler, $r := .Values.runtimes -}}
{{- if and $r.image $r.hostPath -}}
{{- fail (printf "runtimes.%s has image and hostPath: set only one" $handler) -}}
{{- else if not (or $r.image $r.hostPath) -}}
{{- fail (printf "runtimes.%s has neither image nor hostPath: set one" $handler) -}}
{{- else if and $r.hostPath $r.path -}}
{{- fail (printf "runtimes.%s has path, which is for an image: write the whole path into hostPath" $handler) -}}
{{- end -}}
{{- $source := printf "/host%s" (default "" $r.hostPath) -}}
{{- if $r.image -}}
{{- $source = printf "/runtimes/%s%s" $handler (default "/" $r.path) -}}
{{- end -}}
{{- $runtimes = append $runtimes (dict "handler" $handler "kind" $r.kind "version" $r.version "source" $source "options" (default "" $r.options)) -}}
{{- end -}}
{{- dict "state" .Values.state "endpoint" .Values.endpoint "kubelet" .Values.moveKubelet "config" .Values.config "runtimes" $runtimes | toPrettyJson -}}
{{- end -}}
