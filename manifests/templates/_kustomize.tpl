{{/*
The chart has no objects of its own: these templates read the kustomizations of this folder. They know as much of
kustomize as those use, and fail on the rest. tests/e2e/test_chart.py compares the result with kustomize's.

A template cannot return an object. All of these have one dict as their context, and change it:
  Files      the chart's files
  objects    what is made so far
  hashed     names of ConfigMaps -> true, where the name changes with the content
  patches    of the kustomizations that are read
  folder     of the kustomization that is read: "", or a path that ends with a slash
  path, generator, options, patch: what the called template is about
*/}}

{{/* Appends what the kustomization in `.folder` makes, and its patches. */}}
{{- define "gpu-extender.kustomization" -}}
{{- $path := printf "%skustomization.yaml" .folder -}}
{{- $made := .Files.Get $path | required (printf "%s does not exist" $path) | fromYaml -}}
{{- $known := list "apiVersion" "kind" "resources" "components" "configMapGenerator" "generatorOptions" "patches" "replacements" -}}
{{- range keys $made -}}
{{- if not (has . $known) -}}{{- fail (printf "%s: the chart does not know %q" $path .) -}}{{- end -}}
{{- end -}}
{{- range $made.resources -}}
{{- include "gpu-extender.resource" (set $ "path" (printf "%s%s" $.folder .)) -}}
{{- end -}}
{{- range $made.configMapGenerator -}}
{{- $_ := set $ "options" (merge (dict) (.options | default dict) ($made.generatorOptions | default dict)) -}}
{{- include "gpu-extender.config-map" (set $ "generator" .) -}}
{{- end -}}
{{- $_ := set . "patches" (concat .patches ($made.patches | default list)) -}}
{{- end -}}

{{/* Appends the objects of the file `.path`. */}}
{{- define "gpu-extender.resource" -}}
{{- $text := .Files.Get .path | required (printf "%s does not exist" .path) -}}
{{- range regexSplit "(?m)^---$" $text -1 -}}
{{- $object := fromYaml . -}}
{{- if not $object.kind -}}{{- fail (printf "%s: no object: %v" $.path $object) -}}{{- end -}}
{{- $_ := set $ "objects" (append $.objects $object) -}}
{{- end -}}
{{- end -}}

{{/* Appends the ConfigMap of `.generator`, an entry of a configMapGenerator with these `.options`. */}}
{{- define "gpu-extender.config-map" -}}
{{- $data := dict -}}
{{- range .generator.files -}}
{{- $_ := set $data . ($.Files.Get (printf "%s%s" $.folder .)) -}}
{{- end -}}
{{- $meta := pick .generator "name" "namespace" -}}
{{- with .options.labels -}}{{- $_ := set $meta "labels" . -}}{{- end -}}
{{- if not .options.disableNameSuffixHash -}}{{- $_ := set .hashed $meta.name true -}}{{- end -}}
{{- $made := dict "apiVersion" "v1" "kind" "ConfigMap" "metadata" $meta "data" $data -}}
{{- $_ := set . "objects" (append .objects $made) -}}
{{- end -}}

{{/* Applies `.patch`, an entry of `patches`, to the objects that its target selects. */}}
{{- define "gpu-extender.patch" -}}
{{- $target := .patch.target -}}
{{- if omit $target "kind" "name" -}}{{- fail (printf "the chart selects by kind and name alone: %v" $target) -}}{{- end -}}
{{- $pattern := printf "^(?:%s)/(?:%s)$" $target.kind $target.name -}}
{{- $kept := list -}}
{{- range $object := .objects -}}
{{- if not (regexMatch $pattern (printf "%s/%s" $object.kind $object.metadata.name)) -}}
{{- $kept = append $kept $object -}}
{{- else if not (hasPrefix "$patch: delete" $.patch.patch) -}}
{{- $kept = append $kept $object -}}
{{- range fromYamlArray $.patch.patch -}}
{{- include "gpu-extender.operation" (dict "object" $object "operation" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $_ := set . "objects" $kept -}}
{{- end -}}

{{/* Applies `.operation` of a JSON patch to `.object`; its path leads through maps alone. */}}
{{- define "gpu-extender.operation" -}}
{{- if kindIs "string" .operation -}}{{- fail (printf "the chart knows no such patch: %s" .operation) -}}{{- end -}}
{{- $at := .object -}}
{{- $names := splitList "/" (trimPrefix "/" .operation.path) -}}
{{- range initial $names -}}{{- $at = index $at . -}}{{- end -}}
{{- if eq .operation.op "remove" -}}
{{- $_ := unset $at (last $names) -}}
{{- else if eq .operation.op "replace" -}}
{{- $_ := set $at (last $names) .operation.value -}}
{{- else -}}
{{- fail (printf "the chart knows no operation %q" .operation.op) -}}
{{- end -}}
{{- end -}}

{{/* Sets `.pods`: the pod specs of the workloads among the objects. */}}
{{- define "gpu-extender.pods" -}}
{{- $_ := set . "pods" list -}}
{{- range $object := .objects -}}
{{- $job := dig "spec" "jobTemplate" "spec" "template" "spec" dict $object -}}
{{- with dig "spec" "template" "spec" $job $object -}}
{{- $_ := set $ "pods" (append $.pods .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Gives each ConfigMap in `.hashed` the name that kustomize gives it, also in the volumes of `.pods`. */}}
{{- define "gpu-extender.hashes" -}}
{{- $names := dict -}}
{{- range .objects -}}
{{- if and (eq .kind "ConfigMap") (hasKey $.hashed .metadata.name) -}}
{{- $sum := dict "kind" .kind "name" "" "data" .data | toJson | sha256sum | trunc 10 -}}
{{- $sum = $sum | replace "0" "g" | replace "1" "h" | replace "3" "k" | replace "a" "m" | replace "e" "t" -}}
{{- $_ := set $names .metadata.name (printf "%s-%s" .metadata.name $sum) -}}
{{- $_ := set .metadata "name" (index $names .metadata.name) -}}
{{- end -}}
{{- end -}}
{{- range .pods -}}
{{- range .volumes -}}
{{- with .configMap -}}{{- $_ := set . "name" (index $names .name | default .name) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
