{{/* Names and labels. */}}

{{- define "statehouse.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What selects the pods of a component: (dict "top" $ "component" "node"). Without a component: all pods. */}}
{{- define "statehouse.selector" -}}
app.kubernetes.io/name: {{ default .top.Chart.Name .top.Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .top.Release.Name | quote }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{- define "statehouse.labels" -}}
{{ include "statehouse.selector" . }}
app.kubernetes.io/version: {{ .top.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .top.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .top.Chart.Name .top.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* An image: (dict "top" $ "image" .Values.image.service). */}}
{{- define "statehouse.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ default .top.Chart.AppVersion .image.tag }}
{{- end -}}
{{- end -}}

{{/* The name of the pods' headless Service, by which others reach each node. */}}
{{- define "statehouse.nodes" -}}
{{ include "statehouse.fullname" . }}-node
{{- end -}}

{{/* The names of the ports of metrics, as JSON: a router's workers have one each, from 9100 on. */}}
{{- define "statehouse.metricsPorts" -}}
{{- $workers := include "statehouse.setting" (dict "top" . "own" .Values.routers.settings "name" "workers" "default" 1) | int -}}
{{- $ports := list (dict "name" "metrics" "port" 9100) -}}
{{- range $worker := untilStep 1 $workers 1 -}}
{{- $ports = append $ports (dict "name" (printf "metrics-%d" $worker) "port" (add 9100 $worker)) -}}
{{- end -}}
{{- toJson $ports -}}
{{- end -}}

{{/* The name by which this release's checkpoints are claimed. */}}
{{- define "statehouse.checkpoints" -}}
{{ include "statehouse.fullname" . }}-checkpoints
{{- end -}}
