{{/* What values.schema.json can't say: values that don't go together. */}}
{{- define "statehouse.check" -}}
{{- with .Values.tls -}}
{{- if .enabled -}}
{{- if not (and .nodeSecret .routerSecret) -}}
{{- fail "tls.enabled needs tls.nodeSecret and tls.routerSecret" -}}
{{- end -}}
{{- if and (not .processorSecret) (or (gt (int $.Values.controllers.replicas) 0) (ne $.Values.processor.mode "none")) -}}
{{- fail "tls.enabled needs tls.processorSecret, for the processor and the controllers" -}}
{{- end -}}
{{- else if .rules -}}
{{- fail "tls.rules does nothing without tls.enabled" -}}
{{- end -}}
{{- end -}}
{{- with .Values.kafka -}}
{{- $sasl := hasPrefix "sasl_" .securityProtocol -}}
{{- if and $sasl (not (and .saslMechanism .credentialsSecret)) -}}
{{- fail (printf "kafka.securityProtocol %s needs kafka.saslMechanism and kafka.credentialsSecret" .securityProtocol) -}}
{{- end -}}
{{- if and (not $sasl) (or .saslMechanism .credentialsSecret) -}}
{{- fail "kafka.saslMechanism and kafka.credentialsSecret do nothing without sasl_plaintext or sasl_ssl in kafka.securityProtocol" -}}
{{- end -}}
{{- if and .tlsSecret (not (hasSuffix "ssl" .securityProtocol)) -}}
{{- fail (printf "kafka.tlsSecret does nothing with %s in kafka.securityProtocol: give ssl or sasl_ssl" .securityProtocol) -}}
{{- end -}}
{{- if and .showCertificate (not .tlsSecret) -}}
{{- fail "kafka.showCertificate needs kafka.tlsSecret" -}}
{{- end -}}
{{- end -}}
{{- if and (ne .Values.processor.mode "none") (not .Values.processor.module) -}}
{{- fail "processor.module is missing: the topology module, as in examples.leaderboard.topology; or set processor.mode to none" -}}
{{- end -}}
{{- if eq .Values.processor.mode "sparkApplication" -}}
{{- if not .Values.processor.checkpointDir -}}
{{- fail "processor.mode sparkApplication needs processor.checkpointDir: executors run elsewhere, so it must be a URI that all reach" -}}
{{- end -}}
{{- if not .Values.processor.spark.image -}}
{{- fail "processor.mode sparkApplication needs processor.spark.image" -}}
{{- end -}}
{{- end -}}
{{- range $role := list "nodes" "routers" "controllers" "processor" -}}
{{- range (get $.Values $role).extraEnv -}}
{{- if or (hasPrefix "STATEHOUSE_" .name) (hasPrefix "POD_NAME" .name) -}}
{{- fail (printf "%s.extraEnv has %s, which the chart gives: change %s.settings" $role .name $role) -}}
{{- end -}}
{{- end -}}
{{- range $label, $_ := (get $.Values $role).podLabels -}}
{{- if has $label (list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" "statehouse/zone") -}}
{{- fail (printf "%s.podLabels has %s, by which the chart finds its pods" $role $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $name := include "statehouse.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- fail (printf "no object can have a name that begins with %q: give fullnameOverride, of lower-case letters, digits and -" $name) -}}
{{- end -}}
{{- range $number, $zone := .Values.nodes.zones -}}
{{- range $other := slice $.Values.nodes.zones 0 $number -}}
{{- if eq $other.name $zone.name -}}
{{- fail (printf "nodes.zones has the name %s twice" $zone.name) -}}
{{- end -}}
{{- end -}}
{{- /* Pods have the StatefulSet's name with a hash of 10 letters as a label, which has 63 at most. */ -}}
{{- with printf "%s-%s" (include "statehouse.nodes" $) $zone.name -}}
{{- if gt (len .) 52 -}}
{{- fail (printf "a StatefulSet can't have a name as long as %s: give a shorter fullnameOverride, or shorter names in nodes.zones" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.routers.autoscaling -}}
{{- if and .enabled (gt (int .minReplicas) (int .maxReplicas)) -}}
{{- fail "routers.autoscaling.minReplicas is more than maxReplicas" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.nodes.zones (ne .Values.nodes.rackFrom "none") -}}
{{- fail "nodes.zones names the racks already: leave nodes.rackFrom at none" -}}
{{- end -}}
{{- if eq .Values.nodes.onStop "keep" -}}
{{- $session := include "statehouse.setting" (dict "top" $ "own" (dict) "name" "session_timeout_ms" "default" 10000) -}}
{{- if lt (int64 $session) 60000 -}}
{{- fail (printf "nodes.onStop keep needs a settings.session_timeout_ms that a pod is back in: at least 60000, not %s" $session) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.monitoring.serviceMonitor.enabled .Values.tls.enabled (ne .Values.tls.callers "none") -}}
{{- if not (or .Values.monitoring.serviceMonitor.tlsSecret .Values.tls.healthSecret) -}}
{{- fail "monitoring.serviceMonitor under TLS needs a certificate to show: monitoring.serviceMonitor.tlsSecret or tls.healthSecret" -}}
{{- end -}}
{{- end -}}
{{- end -}}
