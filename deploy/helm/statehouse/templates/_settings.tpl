{{/* The settings of statehouse.toml. */}}

{{/* A value as TOML. Helm has read every number as a float. */}}
{{- define "statehouse.toml" -}}
{{- if kindIs "map" . -}}
{ {{ range $number, $key := keys . | sortAlpha }}{{ if $number }}, {{ end }}{{ toJson $key }} = {{ include "statehouse.toml" (get $ $key) }}{{ end }} }
{{- else if kindIs "string" . -}}
{{ toJson . }}
{{- else if and (kindIs "float64" .) (eq (floor .) .) -}}
{{ int64 . }}
{{- else -}}
{{ . }}
{{- end -}}
{{- end -}}

{{/* All settings that the processes share, as JSON: what the chart decides, and .Values.settings. */}}
{{- define "statehouse.settings" -}}
{{- $all := dict "application_id" .Values.applicationId "bootstrap" .Values.kafka.bootstrap -}}
{{- $_ := set $all "bind_host" .Values.bindHost -}}
{{- $_ := set $all "metrics_port" 9100 -}}
{{- $_ := set $all "node_port" 7101 -}}
{{- $_ := set $all "router_port" 7100 -}}
{{- $_ := set $all "state_dir" "/var/lib/statehouse" -}}
{{- with .Values.kafka -}}
{{- if ne .securityProtocol "plaintext" -}}{{- $_ := set $all "kafka_security_protocol" .securityProtocol -}}{{- end -}}
{{- if .saslMechanism -}}{{- $_ := set $all "kafka_sasl_mechanism" .saslMechanism -}}{{- end -}}
{{- if .credentialsSecret -}}{{- $_ := set $all "kafka_credentials" (printf "/etc/statehouse-kafka/%s" .credentialsKey) -}}{{- end -}}
{{- if .tlsSecret -}}{{- $_ := set $all "kafka_ca" "/etc/statehouse-kafka-tls/ca.crt" -}}{{- end -}}
{{- if .showCertificate -}}
{{- $_ := set $all "kafka_certificate" "/etc/statehouse-kafka-tls/tls.crt" -}}
{{- $_ := set $all "kafka_key" "/etc/statehouse-kafka-tls/tls.key" -}}
{{- end -}}
{{- end -}}
{{- with .Values.tls -}}
{{- if .enabled -}}
{{- $_ := set $all "tls_certificate" "/etc/statehouse-tls/tls.crt" -}}
{{- $_ := set $all "tls_key" "/etc/statehouse-tls/tls.key" -}}
{{- $_ := set $all "tls_ca" "/etc/statehouse-tls/ca.crt" -}}
{{- $_ := set $all "tls_callers" .callers -}}
{{- $_ := set $all "tls_node_name" .serverName -}}
{{- if .rules -}}{{- $_ := set $all "security_rules" "/etc/statehouse-rules/rules.toml" -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- merge $all .Values.settings | toJson -}}
{{- end -}}

{{/* A setting that a role has: (dict "top" $ "own" .Values.nodes.settings "name" "drain_timeout_ms" "default" 10000). */}}
{{- define "statehouse.setting" -}}
{{- $shared := .top.Values.settings -}}
{{- if hasKey .own .name -}}
{{ get .own .name | int64 }}
{{- else if hasKey $shared .name -}}
{{ get $shared .name | int64 }}
{{- else -}}
{{ .default | int64 }}
{{- end -}}
{{- end -}}

{{/* Settings of one role, as variables. */}}
{{- define "statehouse.variables" -}}
{{- range $name := keys . | sortAlpha }}
{{- $value := get $ $name }}
- name: STATEHOUSE_{{ upper $name }}
  value: {{ if kindIs "map" $value }}{{ toJson $value | quote }}{{ else if kindIs "string" $value }}{{ $value | quote }}{{ else }}{{ include "statehouse.toml" $value | quote }}{{ end }}
{{- end }}
{{- end -}}

{{/* Milliseconds as whole seconds, rounded up. */}}
{{- define "statehouse.seconds" -}}
{{ div (add (int64 .) 999) 1000 }}
{{- end -}}
