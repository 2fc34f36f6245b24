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

{{/* A repository of the value image, with its registry. The arguments are the root and the name: (list root "operator"). */}}
{{- define "muxtunnel.repository" -}}
{{- $root := index . 0 -}}
{{- with default $root.Values.image.registry $root.Values.global.imageRegistry }}{{ . }}/{{ end }}
{{- index $root.Values.image.repositories (index . 1) }}
{{- end }}

{{- define "muxtunnel.tag" -}}
{{ coalesce .Values.global.imageTag .Values.image.tag .Chart.AppVersion }}
{{- end }}

{{/* An image of the operator's own version. The arguments are the root and the name. */}}
{{- define "muxtunnel.image" -}}
{{ include "muxtunnel.repository" . }}:{{ include "muxtunnel.tag" (index . 0) }}
{{- end }}

{{/* The image of benchmarks, which is also that of `helm test`. */}}
{{- define "muxtunnel.benchImage" -}}
{{ default (include "muxtunnel.image" (list . "bench")) .Values.class.images.bench }}
{{- end }}

{{/* The class that the operator applies, as a manifest. */}}
{{- define "muxtunnel.class" -}}
{{- $spec := dict "controllerName" .Values.controllerName -}}
{{- range $field, $value := omit .Values.class "create" "name" }}
{{- if has $field (list "images" "permitted") }}
{{- $set := dict -}}
{{- range $key, $item := $value }}{{ if $item }}{{ $_ := set $set $key $item }}{{ end }}{{ end -}}
{{- $value = $set -}}
{{- end }}
{{- if $value }}{{ $_ := set $spec $field $value }}{{ end }}
{{- end -}}
apiVersion: muxtunnel.dev/v1alpha1
kind: MuxClass
metadata:
  name: {{ .Values.class.name }}
  labels:
    {{- include "muxtunnel.labels" . | nindent 4 }}
spec:
  {{- toYaml $spec | nindent 2 }}
{{- end }}

{{/*
What the admission policies permit, as a JSON list: the items of the value class.permitted, and the further items of
admissionPolicy.permitted. The arguments are the root and the name of the list.
*/}}
{{- define "muxtunnel.permitted" -}}
{{- $root := index . 0 -}}
{{- $own := ternary (index $root.Values.class.permitted (index . 1)) list $root.Values.class.create -}}
{{ concat (default list $own) (default list (index $root.Values.admissionPolicy.permitted (index . 1))) | uniq | toJson }}
{{- end }}

{{/* `true` if the admission policies permit a feature. The arguments are the root and the feature. */}}
{{- define "muxtunnel.permits" -}}
{{ has (index . 1) (include "muxtunnel.permitted" (list (index . 0) "features") | fromJsonArray) }}
{{- end }}

{{/*
The operator's permissions in each served namespace. The operator can create Secrets, and cannot read or change any
Secret.
*/}}
{{- define "muxtunnel.rules" -}}
- apiGroups: [muxtunnel.dev]
  resources: [muxexits, muxrendezvous, muxbenchmarks]
  verbs: [get, list, watch]
# A benchmark creates one MuxTunnel per environment.
- apiGroups: [muxtunnel.dev]
  resources: [muxtunnels]
  verbs: [get, list, watch, create, patch, delete]
# The operator deletes peers whose spec.ttlSecondsAfterExpiration is over.
- apiGroups: [muxtunnel.dev]
  resources: [muxpeers]
  verbs: [get, list, watch, delete]
- apiGroups: [muxtunnel.dev]
  resources: [muxtunnels/status, muxexits/status, muxrendezvous/status, muxpeers/status, muxbenchmarks/status]
  verbs: [patch]
# Grants of other namespaces: MuxGrants and, if they are installed, the Gateway API's ReferenceGrants.
- apiGroups: [muxtunnel.dev]
  resources: [muxgrants]
  verbs: [list, watch]
- apiGroups: [gateway.networking.k8s.io]
  resources: [referencegrants]
  verbs: [list, watch]
# A MuxClass selects namespaces by their labels.
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get{{ if not .Values.watchNamespaces }}, list, watch{{ end }}]
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
{{- if .Values.admissionPolicy.enabled }}
# An annotation makes the kubelet refresh a pod's volumes at once. The admission policy permits only this annotation.
- apiGroups: [""]
  resources: [pods/status]
  verbs: [patch]
{{- end }}
# Key pairs of gateways, and tokens of benchmarks.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
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

{{/* CEL: the request is of the operator's account. */}}
{{- define "muxtunnel.byTheOperator" -}}
request.userInfo.username == 'system:serviceaccount:{{ .Release.Namespace }}:{{ include "muxtunnel.serviceAccountName" . }}'
{{- end }}

{{/* The condition with which an admission policy applies to the operator's account alone. */}}
{{- define "muxtunnel.ofTheOperator" -}}
- name: of-the-operator
  expression: >-
    {{ include "muxtunnel.byTheOperator" . }}
{{- end }}

{{/* CEL: the object has the label of the operator's objects. */}}
{{- define "muxtunnel.labelled" -}}
has(object.metadata.labels) && 'app.kubernetes.io/managed-by' in object.metadata.labels &&
      object.metadata.labels['app.kubernetes.io/managed-by'] == 'muxtunnel-operator'
{{- end }}

{{/* CEL: an object of the kind owns the object in the variable. The arguments are the variable and the kind. */}}
{{- define "muxtunnel.ownedBy" -}}
(has({{ index . 0 }}.metadata.ownerReferences) && {{ index . 0 }}.metadata.ownerReferences.exists(o,
      o.apiVersion.startsWith('muxtunnel.dev/') && o.kind == '{{ index . 1 }}'))
{{- end }}

{{/* CEL: an object of a kind that has children owns the object in the variable that is the argument. */}}
{{- define "muxtunnel.owned" -}}
(has({{ . }}.metadata.ownerReferences) && {{ . }}.metadata.ownerReferences.exists(o,
      o.apiVersion.startsWith('muxtunnel.dev/') && o.kind in ['MuxTunnel', 'MuxExit', 'MuxRendezvous', 'MuxBenchmark']))
{{- end }}

{{/*
CEL: the stored object is the operator's and belongs to nobody, for example after `kubectl delete --cascade=orphan`. The
operator may adopt it: the new object has the same kind and name of its owner, and the same component.
*/}}
{{- define "muxtunnel.orphan" -}}
(request.operation == 'UPDATE' &&
      (!has(oldObject.metadata.ownerReferences) || oldObject.metadata.ownerReferences.size() == 0) &&
      has(oldObject.metadata.labels) && has(object.metadata.labels)
{{- range list "app.kubernetes.io/name" "app.kubernetes.io/managed-by" "muxtunnel.dev/kind" "muxtunnel.dev/name" "app.kubernetes.io/component" }} &&
      '{{ . }}' in oldObject.metadata.labels && '{{ . }}' in object.metadata.labels &&
      oldObject.metadata.labels['{{ . }}'] == object.metadata.labels['{{ . }}']
{{- end }} &&
      oldObject.metadata.labels['app.kubernetes.io/name'] == 'muxtunnel' &&
      oldObject.metadata.labels['app.kubernetes.io/managed-by'] == 'muxtunnel-operator')
{{- end }}

{{/*
CEL: the object is a Secret of the operator. The key pair that other clusters know has no owner, because the identity of a
gateway survives a deletion of its object.
A dry run, which stores nothing, shows the operator whether an own Secret of key.secretRefs exists, so it may have any name.
*/}}
{{- define "muxtunnel.ownSecret" -}}
has(object.type) && has(object.immutable) && object.immutable && (
      (object.type == 'muxtunnel.dev/key' &&
      (object.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?-(entry|exit|rendezvous)-key-[1-9][0-9]{0,6}$') ||
      (has(request.dryRun) && request.dryRun)) &&
      (!has(object.metadata.ownerReferences) || object.metadata.ownerReferences.size() == 0)) ||
      (object.type == 'muxtunnel.dev/key' &&
      object.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?-pair-[a-z0-9]([-a-z0-9]*[a-z0-9])?$') &&
      {{ include "muxtunnel.ownedBy" (list "object" "MuxTunnel") }}) ||
      (object.type == 'Opaque' && {{ include "muxtunnel.ownedBy" (list "object" "MuxBenchmark") }}))
{{- end }}

{{/* CEL: the peer in the variable that is the argument ends within 24 hours after its creation. */}}
{{- define "muxtunnel.temporary" -}}
(has({{ . }}.spec.expirationTime) &&
      timestamp({{ . }}.spec.expirationTime) <= timestamp({{ . }}.metadata.creationTimestamp) + duration('24h'))
{{- end }}

{{/* CEL: container c has no privileges. Other rules check its added capabilities. */}}
{{- define "muxtunnel.unprivileged" -}}
has(c.securityContext) && has(c.securityContext.allowPrivilegeEscalation) &&
      !c.securityContext.allowPrivilegeEscalation &&
      {{ include "muxtunnel.confined" . }} &&
      has(c.securityContext.capabilities) && has(c.securityContext.capabilities.drop) &&
      'ALL' in c.securityContext.capabilities.drop
{{- end }}

{{/* CEL: container c has no privileges and no capabilities. */}}
{{- define "muxtunnel.withoutRights" -}}
{{ include "muxtunnel.unprivileged" . }} && !has(c.securityContext.capabilities.add) &&
      (!has(c.securityContext.runAsUser) || c.securityContext.runAsUser != 0) &&
      (!has(c.securityContext.runAsNonRoot) || c.securityContext.runAsNonRoot)
{{- end }}

{{/* CEL: init container c has no privileges, and only the capabilities of its program. */}}
{{- define "muxtunnel.initRights" -}}
{{ include "muxtunnel.unprivileged" . }} && (!has(c.securityContext.capabilities.add) ||
      c.securityContext.capabilities.add.all(a, a == 'NET_ADMIN' || (c.name == 'network' && a == 'MKNOD')))
{{- end }}

{{/* CEL: the settings of container c, which has a securityContext, give it no access to its node. */}}
{{- define "muxtunnel.confined" -}}
!(has(c.securityContext.privileged) && c.securityContext.privileged) &&
      !has(c.securityContext.procMount) && !has(c.securityContext.seLinuxOptions) &&
      !has(c.securityContext.windowsOptions) &&
      (!has(c.securityContext.appArmorProfile) || c.securityContext.appArmorProfile.type == 'RuntimeDefault') &&
      (!has(c.securityContext.seccompProfile) || c.securityContext.seccompProfile.type == 'RuntimeDefault') &&
      (!has(c.ports) || c.ports.all(p, !has(p.hostPort)))
{{- end }}

{{/* CEL: container c, which is not the operator's, requests no privilege. */}}
{{- define "muxtunnel.harmless" -}}
(!has(c.ports) || c.ports.all(p, !has(p.hostPort))) && (!has(c.securityContext) || (
      {{ include "muxtunnel.confined" . }} &&
      !(has(c.securityContext.allowPrivilegeEscalation) && c.securityContext.allowPrivilegeEscalation) &&
      (!has(c.securityContext.runAsUser) || c.securityContext.runAsUser != 0) &&
      (!has(c.securityContext.runAsNonRoot) || c.securityContext.runAsNonRoot) &&
      (!has(c.securityContext.capabilities) || !has(c.securityContext.capabilities.add))))
{{- end }}

{{/* CEL: the stored object, of which an update may keep settings of others, is a workload of the operator. */}}
{{- define "muxtunnel.storedWorkload" -}}
oldObject != null && has(oldObject.metadata.labels) &&
      'app.kubernetes.io/managed-by' in oldObject.metadata.labels &&
      oldObject.metadata.labels['app.kubernetes.io/managed-by'] == 'muxtunnel-operator' &&
      {{ include "muxtunnel.owned" "oldObject" }}
{{- end }}

{{/*
CEL: the stored workload has a container s with the name of container c that fulfils a condition. The arguments are the
list of containers and the condition. An init container can have capabilities, so it keeps settings of others only with
the capabilities that it already has with these settings.
*/}}
{{- define "muxtunnel.kept" -}}
{{- $list := printf "oldObject.spec.template.spec.%s" (index . 0) -}}
(variables.stored && has({{ $list }}) && {{ $list }}.exists(s, s.name == c.name && {{ index . 1 }}
{{- if eq (index . 0) "initContainers" }} &&
      has(s.securityContext) == has(c.securityContext) &&
      (!has(c.securityContext) || s.securityContext == c.securityContext)
{{- end }}))
{{- end }}

{{/* CEL: container c lacks a field, or has it as stored. The arguments are the list of containers and the field. */}}
{{- define "muxtunnel.keptField" -}}
(!has(c.{{ index . 1 }}) || {{ include "muxtunnel.kept" (list (index . 0) (printf "has(s.%[1]s) && s.%[1]s == c.%[1]s" (index . 1))) }})
{{- end }}

{{/* CEL: the probe in the variable that is the argument is missing, or is an HTTP request to the pod itself. */}}
{{- define "muxtunnel.ownProbe" -}}
(!has({{ . }}) || (has({{ . }}.httpGet) && !has({{ . }}.exec) && !has({{ . }}.httpGet.host)))
{{- end }}

{{/* The names of the operator's containers, by list. */}}
{{- define "muxtunnel.ownNames" -}}
{{- if eq . "containers" }}['gateway', 'sysctl-probe', 'agent', 'runner']{{ else }}['wan', 'network']{{ end }}
{{- end }}

{{/* CEL: the name of container c is the name of one of the operator's containers in this list. */}}
{{- define "muxtunnel.isOwn" -}}
c.name in {{ include "muxtunnel.ownNames" . }}
{{- end }}

{{/*
CEL: the image in the variable that is the argument is a tag or a digest of a repository of the value image, of
class.images or of admissionPolicy.repositories. The arguments are the root, the name of the image, and the variable. The
whole text has to match: otherwise the repository HOST would also permit the image HOST:5000/OTHER.
*/}}
{{- define "muxtunnel.ofRepository" -}}
{{- $root := index . 0 -}}
{{- $repositories := list (include "muxtunnel.repository" (list $root (index . 1))) -}}
{{- if $root.Values.class.create }}
{{- with index $root.Values.class.images (index . 1) }}
{{- $repositories = append $repositories (regexReplaceAll ":[^/]*$" (regexReplaceAll "@.*$" . "") "") -}}
{{- end }}
{{- end }}
{{- $further := default list (index $root.Values.admissionPolicy.repositories (index . 1)) -}}
{{ index . 2 }}.matches('^({{ concat $repositories $further | uniq | join "|" | replace "." "[.]" }})(:[0-9A-Za-z_][-.0-9A-Za-z_]*)?(@[0-9a-z]+:[0-9a-f]+)?$')
{{- end }}

{{/*
CEL: container c is not the operator's, requests no privilege, and is in the stored workload or in
admissionPolicy.permitted.sidecars. The arguments are the root and the list of containers.
*/}}
{{- define "muxtunnel.sidecar" -}}
(!(c.name in ['gateway', 'sysctl-probe', 'agent', 'runner', 'wan', 'network']) &&
      {{ include "muxtunnel.harmless" . }} && (
      {{- range (index . 0).Values.admissionPolicy.permitted.sidecars }}
      (c.name == '{{ .name }}' && c.image.matches('^{{ .repository | replace "." "[.]" }}(:[0-9A-Za-z_][-.0-9A-Za-z_]*)?(@[0-9a-z]+:[0-9a-f]+)?$')) ||
      {{- end }}
      {{ include "muxtunnel.kept" (list (index . 1) "s == c") }}))
{{- end }}

{{/* CEL: container c has its image. The arguments are the root and the list of containers. */}}
{{- define "muxtunnel.ownImage" -}}
{{- $root := index . 0 -}}
({{ if eq (index . 1) "containers" -}}
(c.name in ['gateway', 'sysctl-probe'] && {{ include "muxtunnel.ofRepository" (list $root "gateway" "c.image") }}) ||
      (c.name in ['agent', 'runner'] && {{ include "muxtunnel.ofRepository" (list $root "bench" "c.image") }})
{{- else -}}
(c.name == 'wan' && {{ include "muxtunnel.ofRepository" (list $root "wan" "c.image") }}) ||
      (c.name == 'network' && {{ include "muxtunnel.ofRepository" (list $root "gateway" "c.image") }})
{{- end }} ||
      {{ include "muxtunnel.kept" (list (index . 1) "s.image == c.image") }})
{{- end }}

{{/* CEL: container c is one of the operator's containers, with its command, arguments and probes. */}}
{{- define "muxtunnel.ownContainer" -}}
{{ include "muxtunnel.ownProbe" "c.livenessProbe" }} && {{ include "muxtunnel.ownProbe" "c.readinessProbe" }} &&
      {{ include "muxtunnel.keptField" (list "containers" "startupProbe") }} && !has(c.volumeDevices) &&
      ((c.name == 'gateway' && has(c.command) && c.command == ['/usr/local/bin/muxgate'] &&
      has(c.args) && c.args == ['run', '--config', '/etc/muxgate/config.yaml']) ||
      (c.name == 'sysctl-probe' &&
      has(c.command) && c.command == ['/usr/local/bin/muxgate', '--version'] && !has(c.args)) ||
      (c.name == 'agent' && !has(c.command) &&
      has(c.args) && c.args == ['agent', '--token-file=/etc/muxbench/token']) ||
      (c.name == 'runner' && !has(c.command) &&
      has(c.args) && c.args.size() > 0 && c.args[0] == 'run' && c.args.all(a, a in ['run',
      '--token-file=/etc/muxbench/token', '--termination-log=/dev/termination-log',
      '--operator-hash-file=/etc/muxbench-operator/sha256'] ||
      a.matches('^--(connections|delay-milliseconds|profiles|paths|protocols|duration-seconds|warm-up-seconds|rounds|udp-bits-per-second)=[-0-9A-Za-z,.]*$'))))
{{- end }}

{{/* CEL: init container c is one of the operator's init containers, like muxtunnel.ownContainer. */}}
{{- define "muxtunnel.ownInitContainer" -}}
!has(c.livenessProbe) && !has(c.readinessProbe) && !has(c.volumeDevices) &&
      ((c.name == 'wan' && has(c.command) && c.command == ['/usr/local/bin/muxwan'] &&
      has(c.args) && c.args.size() > 0 && c.args[0] == 'run' && c.args.all(a, a in ['run', '--delay', '--jitter',
      '--loss', '--rate', '--port', '--all', '--except-port', '--backend', 'auto', 'netem', 'nfqueue', '--report',
      '/run/muxwan/report.json'] || a.matches('^[0-9][0-9A-Za-z.%]*$')) &&
      (!has(c.startupProbe) || (has(c.startupProbe.exec) &&
      c.startupProbe.exec.command == ['/usr/local/bin/muxwan', 'check', '--report', '/run/muxwan/report.json']))) ||
      (c.name == 'network' && !has(c.startupProbe) && has(c.command) && c.command == ['/usr/local/bin/muxgate'] &&
      has(c.args) && c.args.size() > 1 && c.args[0] == 'tun' && c.args[1] == 'create' && c.args.all(a, a in ['tun',
      'create', '--device', 'mux0', '--device-node', '/run/muxtunnel/tun', '--owner', '--mtu', '--queues', '--address',
      '--route', '--forward', '--masquerade', 'in', 'out'] || a.matches('^[0-9a-fA-F.:]+(/[0-9]+)?$'))))
{{- end }}

{{/*
CEL: nothing but the command of container c starts a program in it, and the program is the image's own, except for
settings that the stored workload has. A hook starts a program. A mount above a program, a library or a setting of the
loader replaces the program. The argument is the list of containers.
*/}}
{{- define "muxtunnel.ownProgram" -}}
{{ include "muxtunnel.keptField" (list . "lifecycle") }} && {{ include "muxtunnel.keptField" (list . "workingDir") }} &&
      ((!has(c.terminationMessagePath) || c.terminationMessagePath == '/dev/termination-log') ||
      {{ include "muxtunnel.keptField" (list . "terminationMessagePath") }}) &&
      (!has(c.volumeMounts) || c.volumeMounts.all(m,
      {{- if eq . "containers" }}
      (c.name == 'gateway' && m.mountPath in ['/etc/muxgate', '/etc/muxgate-keys', '/etc/muxgate-rendezvous',
      '/etc/muxgate-users', '/etc/muxgate-ssh', '/run/muxtunnel']) ||
      (c.name == 'agent' && m.mountPath == '/etc/muxbench') ||
      (c.name == 'runner' && m.mountPath in ['/etc/muxbench', '/etc/muxbench-operator']) ||
      {{- else }}
      (c.name == 'wan' && m.mountPath == '/run') || (c.name == 'network' && m.mountPath == '/run/muxtunnel') ||
      {{- end }}
      {{ include "muxtunnel.kept" (list . "has(s.volumeMounts) && s.volumeMounts.exists(n, n == m)") }}))
{{- end }}

{{/*
CEL: container c has only the environment variables of admissionPolicy.permitted.env and those that the stored workload
has. The arguments are the root and the list of containers.
*/}}
{{- define "muxtunnel.ownEnvironment" -}}
{{- $names := list }}
{{- range (index . 0).Values.admissionPolicy.permitted.env }}{{ $names = append $names (printf "'%s'" .) }}{{ end -}}
{{ include "muxtunnel.keptField" (list (index . 1) "envFrom") }} && (!has(c.env) || c.env.all(e, e.name in [{{ join ", " $names }}] ||
      {{ include "muxtunnel.kept" (list (index . 1) "has(s.env) && s.env.exists(f, f == e)") }}))
{{- end }}

{{/*
The rules for the containers of workloads, as JSON: the name of a variable of the policy, the list of containers, the
condition that a container c fulfils, the text behind a container's name in the message, and the message. Except for the
first rule of each list, the rules are only for the operator's own containers.
*/}}
{{- define "muxtunnel.containerRules" -}}
{{- $own := "containers" -}}
{{- $init := "initContainers" -}}
{{- $ofOwn := printf "!(%s) || " (include "muxtunnel.isOwn" $own) -}}
{{- $ofInit := printf "!(%s) || " (include "muxtunnel.isOwn" $init) -}}
{{- $image := "must have an image of their program's repositories (image, class.images, admissionPolicy.repositories), or the image of the stored object" -}}
{{- $command := "must have a command, arguments and probes that the operator writes" -}}
{{- $mounts := "may only have mount points that the operator writes, and mounts, hooks and folders that the stored object has" -}}
{{- $env := "may only have the environment variables of admissionPolicy.permitted.env, and variables that the stored object has" -}}
{{- list
      (dict "name" "otherContainers" "list" $own "field" ""
        "is" (printf "%s || %s" (include "muxtunnel.isOwn" $own) (include "muxtunnel.sidecar" (list . $own)))
        "message" "the operator's workloads may only have the operator's containers, those of admissionPolicy.permitted.sidecars, and unprivileged containers that the stored object has")
      (dict "name" "images" "list" $own "field" ".image"
        "is" (printf "%s%s" $ofOwn (include "muxtunnel.ownImage" (list . $own)))
        "message" (printf "containers of the operator's workloads %s" $image))
      (dict "name" "commands" "list" $own "field" ""
        "is" (printf "%s(%s)" $ofOwn (include "muxtunnel.ownContainer" .))
        "message" (printf "containers of the operator's workloads %s" $command))
      (dict "name" "mounts" "list" $own "field" ""
        "is" (printf "%s(%s)" $ofOwn (include "muxtunnel.ownProgram" $own))
        "message" (printf "containers of the operator's workloads %s" $mounts))
      (dict "name" "environments" "list" $own "field" ".env"
        "is" (printf "%s(%s)" $ofOwn (include "muxtunnel.ownEnvironment" (list . $own)))
        "message" (printf "containers of the operator's workloads %s" $env))
      (dict "name" "privileges" "list" $own "field" ".securityContext"
        "is" (printf "%s(%s)" $ofOwn (include "muxtunnel.withoutRights" .))
        "message" "containers of the operator's workloads must be unprivileged")
      (dict "name" "otherInitContainers" "list" $init "field" ""
        "is" (printf "(%s && c.name == 'wan') || (%s && c.name == 'network') || %s" (include "muxtunnel.permits" (list . "WANEmulation")) (include "muxtunnel.permits" (list . "Network")) (include "muxtunnel.sidecar" (list . $init)))
        "message" "init containers of the operator's workloads may only emulate a WAN (feature WANEmulation), create the interface for IP packets (feature Network), be in admissionPolicy.permitted.sidecars, or be unprivileged containers that the stored object has")
      (dict "name" "initImages" "list" $init "field" ".image"
        "is" (printf "%s%s" $ofInit (include "muxtunnel.ownImage" (list . $init)))
        "message" (printf "init containers of the operator's workloads %s" $image))
      (dict "name" "initCommands" "list" $init "field" ""
        "is" (printf "%s(%s)" $ofInit (include "muxtunnel.ownInitContainer" .))
        "message" (printf "init containers of the operator's workloads %s" $command))
      (dict "name" "initMounts" "list" $init "field" ""
        "is" (printf "%s(%s)" $ofInit (include "muxtunnel.ownProgram" $init))
        "message" (printf "init containers of the operator's workloads %s" $mounts))
      (dict "name" "initEnvironments" "list" $init "field" ".env"
        "is" (printf "%s(%s)" $ofInit (include "muxtunnel.ownEnvironment" (list . $init)))
        "message" (printf "init containers of the operator's workloads %s" $env))
      (dict "name" "initPrivileges" "list" $init "field" ".securityContext"
        "is" (printf "%s(%s)" $ofInit (include "muxtunnel.initRights" .))
        "message" "init containers may only have the capability NET_ADMIN, and MKNOD if they create the interface for IP packets")
    | toJson }}
{{- end }}

{{/* CEL: the pods of the workload run as the account of the operator for one end of their owner. */}}
{{- define "muxtunnel.ownAccount" -}}
(has(object.metadata.labels) && 'muxtunnel.dev/kind' in object.metadata.labels &&
      'muxtunnel.dev/name' in object.metadata.labels && (
{{- range $index, $child := list (list "MuxTunnel" "entry") (list "MuxTunnel" "tunnel-exit") (list "MuxExit" "exit") (list "MuxRendezvous" "rendezvous") }}
{{- if $index }} ||{{ end }}
      (object.metadata.labels['muxtunnel.dev/kind'] == '{{ index $child 0 }}' && object.spec.template.spec.serviceAccountName ==
      object.metadata.labels['muxtunnel.dev/name'] + '-{{ index $child 1 }}')
{{- end }}))
{{- end }}

{{/* CEL: a class may permit the label or annotation with the key `key` of a pod. */}}
{{- define "muxtunnel.permittedKey" -}}
{{- $keys := include "muxtunnel.permitted" (list . "podMetadataKeys") | fromJsonArray -}}
{{- if .Values.class.create }}
{{- range list "labels" "annotations" }}
{{- $keys = concat $keys (keys (default dict (index (default dict $.Values.class.template.metadata) .)) | sortAlpha) -}}
{{- end }}
{{- end }}
{{- range uniq $keys }} ||
      {{ if hasSuffix "/*" . }}key.startsWith('{{ trimSuffix "*" . }}'){{ else }}key == '{{ . }}'{{ end }}
{{- end }}
{{- end }}

{{/* CEL: the label with the key `key` of a pod is the operator's, the Job controller's, or permitted. */}}
{{- define "muxtunnel.ownLabel" -}}
key.startsWith('muxtunnel.dev/') || key in ['app.kubernetes.io/name', 'app.kubernetes.io/component',
      'app.kubernetes.io/managed-by', 'controller-uid', 'job-name', 'batch.kubernetes.io/controller-uid',
      'batch.kubernetes.io/job-name']
{{- include "muxtunnel.permittedKey" . }}
{{- end }}

{{/* CEL: the annotation with the key `key` of a pod is the operator's, or permitted. */}}
{{- define "muxtunnel.ownAnnotation" -}}
key.startsWith('muxtunnel.dev/')
{{- include "muxtunnel.permittedKey" . }}
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
