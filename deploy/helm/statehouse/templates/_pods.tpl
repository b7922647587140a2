{{/* Parts of pods that all roles have. */}}

{{- define "statehouse.podSecurity" -}}
runAsNonRoot: true
{{- with .Values.podSecurity.runAsUser }}
runAsUser: {{ . }}
runAsGroup: {{ . }}
{{- end }}
{{- with .Values.podSecurity.fsGroup }}
fsGroup: {{ . }}
fsGroupChangePolicy: OnRootMismatch
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "statehouse.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* With what images are pulled. */}}
{{- define "statehouse.pulled" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Where the pods of a role, as .Values.nodes, may run. */}}
{{- define "statehouse.placed" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .initContainers }}
initContainers:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Where the pods of a role may run beside which others. A zone's own affinity is stronger: (dict "role" ... "zone" ""). */}}
{{- define "statehouse.affinity" -}}
{{- $affinity := deepCopy .role.affinity -}}
{{- with .zone -}}
{{- $of := dict "key" $.role.rackLabel "operator" "In" "values" (list .) -}}
{{- $terms := list (dict "matchExpressions" (list $of)) -}}
{{- $required := dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) -}}
{{- $affinity = mergeOverwrite $affinity (dict "nodeAffinity" $required) -}}
{{- end -}}
{{- with $affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* What a list of a role adds to the chart's: (dict "role" .Values.nodes "what" "extraEnv"). */}}
{{- define "statehouse.extra" -}}
{{- with get .role .what -}}
{{- toYaml . -}}
{{- end -}}
{{- end -}}

{{/* The pod's spec up to its containers: (dict "top" $ "role" .Values.nodes "component" "node"). */}}
{{- define "statehouse.pod" -}}
serviceAccountName: {{ include "statehouse.fullname" .top }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- include "statehouse.pulled" .top }}
securityContext:
  {{- include "statehouse.podSecurity" .top | nindent 2 }}
{{- include "statehouse.placed" .role }}
{{- if .role.topologySpread }}
topologySpreadConstraints:
  {{- range .role.topologySpread }}
  - {{- toYaml . | nindent 4 }}
    labelSelector:
      matchLabels:
        {{- include "statehouse.selector" (dict "top" $.top "component" $.component) | nindent 8 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* What a PodDisruptionBudget asks; Kubernetes takes one of both, and values.yaml has given the other. */}}
{{- define "statehouse.budget" -}}
{{- if hasKey . "minAvailable" -}}
minAvailable: {{ .minAvailable }}
{{- else -}}
maxUnavailable: {{ .maxUnavailable }}
{{- end -}}
{{- end -}}

{{/* The variables that all roles have. */}}
{{- define "statehouse.env" -}}
- name: STATEHOUSE_CONFIG
  value: /etc/statehouse/statehouse.toml
{{- end -}}

{{/* Mounts: (dict "top" $ "secret" .Values.tls.nodeSecret). */}}
{{- define "statehouse.mounts" -}}
- name: settings
  mountPath: /etc/statehouse
  readOnly: true
- name: scratch
  mountPath: /tmp
{{- if .top.Values.tls.enabled }}
- name: tls
  mountPath: /etc/statehouse-tls
  readOnly: true
{{- if .top.Values.tls.rules }}
- name: rules
  mountPath: /etc/statehouse-rules
  readOnly: true
{{- end }}
{{- if .top.Values.tls.healthSecret }}
- name: health
  mountPath: /etc/statehouse-health
  readOnly: true
{{- end }}
{{- end }}
{{- if .top.Values.kafka.credentialsSecret }}
- name: kafka
  mountPath: /etc/statehouse-kafka
  readOnly: true
{{- end }}
{{- if .top.Values.kafka.tlsSecret }}
- name: kafka-tls
  mountPath: /etc/statehouse-kafka-tls
  readOnly: true
{{- end }}
{{- end -}}

{{- define "statehouse.volumes" -}}
- name: settings
  configMap:
    name: {{ include "statehouse.fullname" .top }}
- name: scratch
  emptyDir: {}
{{- if .top.Values.tls.enabled }}
- name: tls
  secret:
    secretName: {{ .secret | quote }}
    defaultMode: 0440
{{- if .top.Values.tls.rules }}
- name: rules
  secret:
    secretName: {{ include "statehouse.fullname" .top }}-rules
    defaultMode: 0440
{{- end }}
{{- with .top.Values.tls.healthSecret }}
- name: health
  secret:
    secretName: {{ . | quote }}
    defaultMode: 0440
{{- end }}
{{- end }}
{{- with .top.Values.kafka.credentialsSecret }}
- name: kafka
  secret:
    secretName: {{ . | quote }}
    defaultMode: 0440
{{- end }}
{{- with .top.Values.kafka.tlsSecret }}
- name: kafka-tls
  secret:
    secretName: {{ . | quote }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{/* How a pod's health check shows itself: with the identity for health if there is one, else its own certificate. */}}
{{- define "statehouse.checkFlags" -}}
{{- $shown := ternary "/etc/statehouse-health" "/etc/statehouse-tls" (not (empty .Values.tls.healthSecret)) -}}
- --tls-ca=/etc/statehouse-tls/ca.crt
- --tls-certificate={{ $shown }}/tls.crt
- --tls-key={{ $shown }}/tls.key
- --tls-server-name={{ .Values.tls.serverName }}
{{- end -}}

{{/*
A probe by gRPC: (dict "top" $ "port" 7101 "service" "liveness" "every" 10). The kubelet speaks no TLS there, so with TLS
the pod asks itself, which starts a Python each time.
*/}}
{{- define "statehouse.grpcProbe" -}}
{{- if .top.Values.tls.enabled }}
exec:
  command:
    - python
    - deploy/healthcheck.py
    {{- include "statehouse.checkFlags" .top | nindent 4 }}
    - --service={{ .service }}
    - 127.0.0.1:{{ .port }}
timeoutSeconds: 10
{{- else }}
grpc:
  port: {{ .port }}
  service: {{ .service }}
timeoutSeconds: 5
{{- end }}
{{- end -}}

{{/* A probe by HTTP on the port of the metrics: (dict "top" $ "path" "/livez"). */}}
{{- define "statehouse.httpProbe" -}}
{{- if .top.Values.tls.enabled }}
exec:
  command:
    - python
    - deploy/healthcheck.py
    {{- include "statehouse.checkFlags" .top | nindent 4 }}
    - --http={{ .path }}
    - 127.0.0.1:9100
timeoutSeconds: 10
{{- else }}
httpGet:
  port: metrics
  path: {{ .path }}
timeoutSeconds: 5
{{- end }}
{{- end -}}

{{/* The three probes of a node or router: (dict "top" $ "port" 7101). A restart is for one that hangs, so it comes late. */}}
{{- define "statehouse.grpcProbes" -}}
startupProbe:
  {{- include "statehouse.grpcProbe" (dict "top" .top "port" .port "service" "liveness") | nindent 2 }}
  periodSeconds: 2
  failureThreshold: 90
livenessProbe:
  {{- include "statehouse.grpcProbe" (dict "top" .top "port" .port "service" "liveness") | nindent 2 }}
  periodSeconds: {{ ternary 30 10 .top.Values.tls.enabled }}
  failureThreshold: {{ ternary 3 6 .top.Values.tls.enabled }}
readinessProbe:
  {{- include "statehouse.grpcProbe" (dict "top" .top "port" .port "service" "readiness") | nindent 2 }}
  periodSeconds: {{ ternary 10 3 .top.Values.tls.enabled }}
  failureThreshold: 2
{{- end -}}

{{/* The three probes of a processor or controller: (dict "top" $ "startup" 600). */}}
{{- define "statehouse.httpProbes" -}}
startupProbe:
  {{- include "statehouse.httpProbe" (dict "top" .top "path" "/startupz") | nindent 2 }}
  periodSeconds: 5
  failureThreshold: {{ div (add (int64 .startup) 4) 5 }}
livenessProbe:
  {{- include "statehouse.httpProbe" (dict "top" .top "path" "/livez") | nindent 2 }}
  periodSeconds: {{ ternary 30 10 .top.Values.tls.enabled }}
  failureThreshold: {{ ternary 3 6 .top.Values.tls.enabled }}
readinessProbe:
  {{- include "statehouse.httpProbe" (dict "top" .top "path" "/readyz") | nindent 2 }}
  periodSeconds: {{ ternary 15 5 .top.Values.tls.enabled }}
  failureThreshold: 3
{{- end -}}
