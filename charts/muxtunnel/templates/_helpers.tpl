{{/* Name of the chart in labels. */}}
{{- define "muxtunnel.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 53 | trimSuffix "-" }}
{{- end }}

{{/* Name of all objects of this release: the release's name, and the chart's name unless the release's name contains it. */}}
{{- define "muxtunnel.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride }}
{{- else if contains (include "muxtunnel.name" .) .Release.Name }}
{{- .Release.Name | trunc 53 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "muxtunnel.name" .) | trunc 53 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "muxtunnel.serviceAccountName" -}}
{{- default (include "muxtunnel.fullname" .) .Values.serviceAccount.name }}
{{- end }}

{{- define "muxtunnel.selectorLabels" -}}
app.kubernetes.io/name: {{ include "muxtunnel.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "muxtunnel.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "muxtunnel.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* Converts a duration such as 1h30m to whole seconds. */}}
{{- define "muxtunnel.seconds" -}}
{{- $sum := 0 }}
{{- range regexFindAll "[0-9]+(ms|h|m|s)" . -1 }}
{{- $factor := get (dict "h" 3600000 "m" 60000 "s" 1000 "ms" 1) (regexFind "[a-z]+$" .) }}
{{- $sum = add $sum (mul (regexFind "^[0-9]+" . | atoi) $factor) }}
{{- end }}
{{- div $sum 1000 }}
{{- end }}

{{/* The namespace of the objects of `helm test`: one of the served namespaces. */}}
{{- define "muxtunnel.testNamespace" -}}
{{- if .Values.watchNamespaces }}{{ first .Values.watchNamespaces }}{{ else }}{{ .Release.Namespace }}{{ end }}
{{- end }}

{{/* Annotations of the objects of `helm test`, with the weight that orders them. A failed Job is kept for its log. */}}
{{- define "muxtunnel.testAnnotations" -}}
helm.sh/hook: test
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/* Fields that both containers of `helm test` share. */}}
{{- define "muxtunnel.testContainer" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
volumeMounts:
- name: test
  mountPath: /test
- name: tmp
  mountPath: /tmp
{{- end }}

{{/* A full image reference. The argument is the root and the name of a value of `image`: (list root "operator"). */}}
{{- define "muxtunnel.image" -}}
{{- $root := index . 0 -}}
{{- $image := index $root.Values.image (index . 1) -}}
{{- $registry := default $image.registry $root.Values.global.imageRegistry -}}
{{- if $registry }}{{ $registry }}/{{ end }}{{ $image.repository }}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ coalesce $image.tag $root.Values.global.imageTag $root.Chart.AppVersion }}{{ end }}
{{- end }}

{{/*
The operator's permissions in each served namespace. The operator may not get or list Secrets: it creates the tokens of
benchmarks, and creates and renews the certificates of gateways. The response to a patch contains the whole Secret, so
the permission to patch discloses the Secret. `watchNamespaces` limits this permission to the served namespaces.
*/}}
{{- define "muxtunnel.rules" -}}
- apiGroups: [muxtunnel.dev]
  resources: [muxbenchmarks]
  verbs: [get, list, watch]
# A benchmark creates one MuxTunnel per environment.
- apiGroups: [muxtunnel.dev]
  resources: [muxtunnels]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [muxtunnel.dev]
  resources: [muxtunnels/status, muxbenchmarks/status]
  verbs: [patch]
# Grants of other namespaces: MuxGrants and, if they are installed, the Gateway API's ReferenceGrants.
- apiGroups: [muxtunnel.dev]
  resources: [muxgrants]
  verbs: [list, watch]
- apiGroups: [gateway.networking.k8s.io]
  resources: [referencegrants]
  verbs: [list, watch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [configmaps, serviceaccounts, services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create, patch]
{{- if .Values.certificates.certManager }}
- apiGroups: [cert-manager.io]
  resources: [certificates]
  verbs: [get, create, patch, delete]
{{- end }}
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [get, list, watch, create, patch, delete]
# Only the kubelet's Events contain the reason why a pod's sandbox fails.
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [list, create, patch]
{{- end }}

{{/* The admission policies match requests of the operator's account, except for the Secret of the authorities. */}}
{{- define "muxtunnel.ofTheOperator" -}}
- name: of-the-operator
  expression: >-
    request.userInfo.username == 'system:serviceaccount:{{ .Release.Namespace }}:{{ include "muxtunnel.serviceAccountName" . }}'
- name: not-the-authorities
  expression: >-
    request.resource.resource != 'secrets' || request.namespace != '{{ .Release.Namespace }}' ||
    request.name != '{{ .Values.certificates.caSecret }}'
{{- end }}

{{/* CEL: the object has the label of the operator's objects. */}}
{{- define "muxtunnel.labelled" -}}
has(object.metadata.labels) && 'app.kubernetes.io/managed-by' in object.metadata.labels &&
      object.metadata.labels['app.kubernetes.io/managed-by'] == 'muxtunnel-operator'
{{- end }}

{{/* CEL: a MuxTunnel or MuxBenchmark owns the object in the variable that is the argument. */}}
{{- define "muxtunnel.owned" -}}
(has({{ . }}.metadata.ownerReferences) && {{ . }}.metadata.ownerReferences.exists(o,
      o.apiVersion.startsWith('muxtunnel.dev/') && o.kind in ['MuxTunnel', 'MuxBenchmark']))
{{- end }}

{{/* CEL: the Secret in the variable that is the argument has the type and the owner of an operator's Secret. */}}
{{- define "muxtunnel.ownSecret" -}}
has({{ . }}.type) && has({{ . }}.metadata.ownerReferences) && {{ . }}.metadata.ownerReferences.exists(o,
      o.apiVersion.startsWith('muxtunnel.dev/') &&
      (({{ . }}.type in ['kubernetes.io/tls', 'muxtunnel.dev/join'] && o.kind == 'MuxTunnel') ||
      ({{ . }}.type == 'Opaque' && o.kind == 'MuxBenchmark')))
{{- end }}

{{/* CEL: container c has no privileges. Other rules check its added capabilities. */}}
{{- define "muxtunnel.unprivileged" -}}
has(c.securityContext) && has(c.securityContext.allowPrivilegeEscalation) &&
      !c.securityContext.allowPrivilegeEscalation &&
      !(has(c.securityContext.privileged) && c.securityContext.privileged) &&
      !has(c.securityContext.procMount) &&
      (!has(c.securityContext.seccompProfile) || c.securityContext.seccompProfile.type == 'RuntimeDefault') &&
      has(c.securityContext.capabilities) && has(c.securityContext.capabilities.drop) &&
      'ALL' in c.securityContext.capabilities.drop && !has(c.env) && !has(c.envFrom) &&
      (!has(c.ports) || c.ports.all(p, !has(p.hostPort)))
{{- end }}

{{/*
CEL: nothing but the command of container c starts a program in it, and the program is the image's own. A hook or a
probe of the kind `exec` starts a program. A mount above a program, a library or a setting of the loader replaces the
program. The argument is the list of permitted mount points, in the syntax of CEL.
*/}}
{{- define "muxtunnel.ownProgram" -}}
!has(c.lifecycle) && !has(c.workingDir) && !has(c.volumeDevices) &&
      (!has(c.terminationMessagePath) || c.terminationMessagePath == '/dev/termination-log') &&
      (!has(c.volumeMounts) || c.volumeMounts.all(m, m.mountPath in {{ . }}))
{{- end }}

{{/* CEL: the probe in the variable that is the argument is missing, or is an HTTP request to the pod itself. */}}
{{- define "muxtunnel.ownProbe" -}}
(!has({{ . }}) || (has({{ . }}.httpGet) && !has({{ . }}.exec) && !has({{ . }}.httpGet.host)))
{{- end }}

{{/* CEL: container c is one of the operator's containers, with its image, command, arguments, probes and mount points. */}}
{{- define "muxtunnel.ownContainer" -}}
{{- $gateway := include "muxtunnel.image" (list . "gateway") -}}
{{- $bench := include "muxtunnel.image" (list . "bench") -}}
{{ include "muxtunnel.ownProbe" "c.livenessProbe" }} && {{ include "muxtunnel.ownProbe" "c.readinessProbe" }} &&
      !has(c.startupProbe) &&
      ((c.name == 'gateway' && c.image == '{{ $gateway }}' &&
      has(c.command) && c.command == ['/usr/local/bin/muxgate'] &&
      has(c.args) && c.args == ['run', '--config', '/etc/muxgate/config.yaml'] &&
      {{ include "muxtunnel.ownProgram" "['/etc/muxgate', '/etc/muxgate-keys', '/etc/muxgate-rendezvous', '/etc/muxgate-users', '/etc/muxgate-ssh', '/run/muxtunnel']" }}) ||
      (c.name == 'sysctl-probe' && c.image == '{{ $gateway }}' &&
      has(c.command) && c.command == ['/usr/local/bin/muxgate', '--version'] && !has(c.args) &&
      {{ include "muxtunnel.ownProgram" "[]" }}) ||
      (c.name == 'agent' && c.image == '{{ $bench }}' && !has(c.command) &&
      has(c.args) && c.args == ['agent', '--token-file=/etc/muxbench/token'] &&
      {{ include "muxtunnel.ownProgram" "['/etc/muxbench']" }}) ||
      (c.name == 'runner' && c.image == '{{ $bench }}' && !has(c.command) &&
      has(c.args) && c.args.size() > 0 && c.args[0] == 'run' && c.args.all(a, a in ['run',
      '--token-file=/etc/muxbench/token', '--termination-log=/dev/termination-log',
      '--operator-hash-file=/etc/muxbench-operator/sha256'] ||
      a.matches('^--(connections|delays|tunings|paths|protocols|duration|warm-up|rounds|udp-rate)=[-0-9A-Za-z,.]*$')) &&
      {{ include "muxtunnel.ownProgram" "['/etc/muxbench', '/etc/muxbench-operator']" }}))
{{- end }}

{{/* CEL: init container c is one of the operator's init containers, like muxtunnel.ownContainer. */}}
{{- define "muxtunnel.ownInitContainer" -}}
!has(c.livenessProbe) && !has(c.readinessProbe) &&
      ((c.name == 'wan' && has(c.command) && c.command == ['/usr/local/bin/muxwan'] &&
      has(c.args) && c.args.size() > 0 && c.args[0] == 'run' && c.args.all(a, a in ['run', '--delay', '--jitter',
      '--loss', '--rate', '--port', '--all', '--except-port', '--backend', 'auto', 'netem', 'nfqueue', '--report',
      '/run/muxwan/report.json'] || a.matches('^[0-9][0-9A-Za-z.%]*$')) &&
      (!has(c.startupProbe) || (has(c.startupProbe.exec) &&
      c.startupProbe.exec.command == ['/usr/local/bin/muxwan', 'check', '--report', '/run/muxwan/report.json'])) &&
      {{ include "muxtunnel.ownProgram" "['/run']" }}) ||
      (c.name == 'network' && !has(c.startupProbe) && has(c.command) && c.command == ['/usr/local/bin/muxgate'] &&
      has(c.args) && c.args.size() > 1 && c.args[0] == 'tun' && c.args[1] == 'create' && c.args.all(a, a in ['tun',
      'create', '--device', 'mux0', '--device-node', '/run/muxtunnel/tun', '--owner', '--mtu', '--queues', '--address',
      '--route', '--forward', '--masquerade', 'in', 'out'] || a.matches('^[0-9a-fA-F.:]+(/[0-9]+)?$')) &&
      {{ include "muxtunnel.ownProgram" "['/run/muxtunnel']" }}))
{{- end }}

{{/* CEL: the label with the key `key` of a pod is the operator's, the Job controller's, or in podMetadata.labels. */}}
{{- define "muxtunnel.ownLabel" -}}
key.startsWith('muxtunnel.dev/')
{{- range (concat (list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component"
      "app.kubernetes.io/managed-by" "controller-uid" "job-name" "batch.kubernetes.io/controller-uid"
      "batch.kubernetes.io/job-name") (default list .Values.podMetadata.labels)) }} ||
      key == '{{ . }}'
{{- end }}
{{- end }}

{{/* CEL: the annotation with the key `key` of a pod is the operator's, or in podMetadata.annotations. */}}
{{- define "muxtunnel.ownAnnotation" -}}
key.startsWith('muxtunnel.dev/')
{{- range .Values.podMetadata.annotations }} ||
      {{ if eq . "*" }}!key.contains('/'){{ else if hasSuffix "/*" . }}key.startsWith('{{ trimSuffix "*" . }}'){{ else }}key == '{{ . }}'{{ end }}
{{- end }}
{{- end }}

{{/*
CEL: the stored object has the same label or annotation (the argument) with the key `key`, which another account wrote,
such as `kubectl rollout restart`.
*/}}
{{- define "muxtunnel.keptKey" -}}
(oldObject != null && has(oldObject.spec.template.metadata) && has(oldObject.spec.template.metadata.{{ . }}) &&
      key in oldObject.spec.template.metadata.{{ . }} &&
      oldObject.spec.template.metadata.{{ . }}[key] == object.spec.template.metadata.{{ . }}[key])
{{- end }}
