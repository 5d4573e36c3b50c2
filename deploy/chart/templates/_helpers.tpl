{{- define "mullion.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "mullion.fullname" -}}
{{- $name := include "mullion.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "mullion.selectorLabels" -}}
app.kubernetes.io/name: {{ include "mullion.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "mullion.labels" -}}
{{ include "mullion.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.additionalLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* What stands in `metadata` beside the name. */}}
{{- define "mullion.metadata" -}}
labels:
  {{- include "mullion.labels" . | nindent 2 }}
{{- with .Values.additionalAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "mullion.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "mullion.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "mullion.image" -}}
{{- $image := .Values.controller.image }}
{{- $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- with $image.digest }}@{{ . }}{{ end }}
{{- end }}

{{- /* The parts that run, with commas between, in the order in which the program names them: {"all": "scheduler,..."}. */}}
{{- define "mullion.parts" -}}
{{- $all := list "scheduler" "provisioner" "disruption" "ipam" "placement" "addresses" "gmsa" }}
{{- $without := list "scheduler" "placement" "addresses" "gmsa" }}
{{- $wanted := .Values.parts }}
{{- if not $wanted }}
{{- $wanted = ternary $all $without (ne .Values.cloud "") }}
{{- end }}
{{- $parts := list }}
{{- range $all }}
{{- if has . $wanted }}{{ $parts = append $parts . }}{{ end }}
{{- end }}
{{- join "," $parts }}
{{- end }}

{{- /* Whether a part has webhooks: "true" or nothing. */}}
{{- define "mullion.webhooks" -}}
{{- $parts := splitList "," (include "mullion.parts" .) }}
{{- if or (has "placement" $parts) (has "addresses" $parts) (has "gmsa" $parts) }}true{{ end }}
{{- end }}

{{- /* Whether a part buys nodes or gives them back: "true" or nothing. */}}
{{- define "mullion.buys" -}}
{{- $parts := splitList "," (include "mullion.parts" .) }}
{{- if or (has "provisioner" $parts) (has "disruption" $parts) }}true{{ end }}
{{- end }}

{{- /* Whether the name of the cluster is needed: instances carry it, and AWS is asked about it. "true" or nothing. */}}
{{- define "mullion.named" -}}
{{- if or (include "mullion.buys" .) (eq .Values.cloud "aws") }}true{{ end }}
{{- end }}

{{- /* The name of the Lease, as the program makes it from the parts. */}}
{{- define "mullion.lease" -}}
{{- $parts := splitList "," (include "mullion.parts" .) }}
{{- if eq (len $parts) 7 }}mullion-controller{{ else }}mullion-{{ join "-" $parts }}{{ end }}
{{- end }}

{{- /* Refuses values that contradict each other, with what to do. */}}
{{- define "mullion.check" -}}
{{- $parts := splitList "," (include "mullion.parts" .) }}
{{- $asks := or (include "mullion.buys" .) (has "ipam" $parts) }}
{{- if and $asks (not .Values.cloud) }}
{{- fail (printf "parts: %s have to know where instances come from: set cloud, or leave out provisioner, disruption and ipam" (join ", " $parts)) }}
{{- end }}
{{- if and .Values.cloud (not $asks) }}
{{- fail "cloud: none of the parts asks a cloud: leave it out, or add provisioner, disruption or ipam to parts" }}
{{- end }}
{{- if and .Values.cloudEndpoint (ne .Values.cloud "simulated") }}
{{- fail "cloudEndpoint: only cloud=simulated heeds it: leave it out, or set cloud" }}
{{- end }}
{{- if ne .Values.cloud "aws" }}
{{- if .Values.region }}
{{- fail "region: only cloud=aws heeds it: leave it out, or set cloud" }}
{{- end }}
{{- range list "clusterEndpoint" "clusterCABundle" "interruptionQueue" "isolatedVPC" "eksControlPlane" }}
{{- if index $.Values.settings . }}
{{- fail (printf "settings.%s: only cloud=aws heeds it: leave it out, or set cloud" .) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and (include "mullion.named" .) (not .Values.settings.clusterName) }}
{{- fail "settings.clusterName is missing: instances carry it in their tags, so name the cluster" }}
{{- end }}
{{- if and .Values.networkPolicy.enabled (include "mullion.webhooks" .) (not .Values.networkPolicy.webhooksFrom) }}
{{- fail "networkPolicy.webhooksFrom is missing: without the addresses of the API servers nobody could call the webhooks" }}
{{- end }}
{{- end }}
