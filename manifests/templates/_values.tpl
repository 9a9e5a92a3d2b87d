{{/* What versions/kustomization.yaml and the values change. The context is that of _kustomize.tpl, with `Values`. */}}

{{/* Sets the images of `.pods`: the values state them, else versions/kustomization.yaml. Sets `.images` to them. */}}
{{- define "gpu-extender.images" -}}
{{- $own := dict "gpu-extender" .Values.image "registry.k8s.io/kube-scheduler" .Values.kubeSchedulerImage -}}
{{- $_ := set . "images" dict -}}
{{- range (.Files.Get "versions/kustomization.yaml" | fromYaml).images -}}
{{- $values := index $own .name | default dict -}}
{{- $tag := coalesce $values.tag .newTag | required (printf "versions/kustomization.yaml: %s has no newTag" .name) -}}
{{- $_ := set $.images .name (printf "%s:%s" (coalesce $values.repository .newName .name) $tag) -}}
{{- end -}}
{{- range .pods -}}
{{- range concat (.initContainers | default list) .containers -}}
{{- $_ := set . "image" (index $.images .image | default .image) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Gives the pods of Deployments what the values say of their place and their resources. */}}
{{- define "gpu-extender.placement" -}}
{{- range .objects -}}
{{- if eq .kind "Deployment" -}}
{{- $pod := .spec.template.spec -}}
{{- range $field, $value := pick $.Values "nodeSelector" "affinity" -}}
{{- if $value -}}{{- $_ := set $pod $field (mergeOverwrite (index $pod $field | default dict) (deepCopy $value)) -}}{{- end -}}
{{- end -}}
{{- $_ := unset $pod "tolerations" -}}
{{- with $.Values.tolerations -}}{{- $_ := set $pod "tolerations" . -}}{{- end -}}
{{- range concat ($pod.initContainers | default list) $pod.containers -}}
{{- if eq .name "gpu-extender" -}}{{- $_ := mergeOverwrite .resources ($.Values.resources | default dict | deepCopy) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Sets the settings' `schedulerVersion` to the version of kube-scheduler's image, as `replacements` in
kustomization.yaml does; then merges `settings` and `schedulerConfiguration` into the files. */}}
{{- define "gpu-extender.files" -}}
{{- $values := dict "gpu-extender.yaml" .Values.settings "kube-scheduler-config.yaml" .Values.schedulerConfiguration -}}
{{- range $object := .objects -}}
{{- if eq .kind "ConfigMap" -}}
{{- if eq .metadata.name "gpu-extender" -}}
{{- $version := index $.images "registry.k8s.io/kube-scheduler" | splitList ":v" | last -}}
{{- $parts := splitList "\"" (index .data "gpu-extender.yaml") -}}
{{- $text := concat (list (first $parts) $version) (slice $parts 2) | join "\"" -}}
{{- $_ := set .data "gpu-extender.yaml" $text -}}
{{- end -}}
{{- range $file, $changes := $values -}}
{{- if and $changes (hasKey $object.data $file) -}}
{{- $merged := mergeOverwrite (index $object.data $file | fromYaml) $changes -}}
{{- $_ := set $object.data $file (printf "%s\n" (toYaml $merged)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Leaves Namespaces out where the values say so, and merges `overrides` into the objects that they name. */}}
{{- define "gpu-extender.overrides" -}}
{{- $kept := list -}}
{{- $left := .Values.overrides | default dict | deepCopy -}}
{{- range .objects -}}
{{- $name := printf "%s/%s" .kind .metadata.name -}}
{{- $_ := mergeOverwrite . (index $left $name | default dict) -}}
{{- $_ := unset $left $name -}}
{{- if or $.Values.createNamespaces (ne .kind "Namespace") -}}{{- $kept = append $kept . -}}{{- end -}}
{{- end -}}
{{- if $left -}}{{- fail (printf "overrides names objects that do not exist: %s" (keys $left | sortAlpha | join ", ")) -}}{{- end -}}
{{- $_ := set . "objects" $kept -}}
{{- end -}}
