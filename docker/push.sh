#!/bin/sh
# Pushes the image $2 with $1 (docker, podman or buildah), and prints its name by digest on stdout.
set -eu
engine=$1 image=$2 flags=${PUSH_FLAGS:-}
case $image in */*) registry=${image%%/*} ;; *) registry= ;; esac
case $registry in
  *.* | *:* | localhost) ;;
  *)
    echo "error: cannot push $image: expected a name with a registry. Build and push it with a full name, for example" >&2
    echo "make image push IMAGE=europe-docker.pkg.dev/PROJECT/REPOSITORY/tpu-pipelines:1" >&2
    exit 2
    ;;
esac
case ${image##*/} in *:*) name=${image%:*} ;; *) name=$image ;; esac
if [ "$engine" = docker ]; then
  docker push $flags "$image" >&2
  docker image inspect --format '{{range .RepoDigests}}{{println .}}{{end}}' "$image" | grep "^$name@sha256:"
else
  digest=$(mktemp)
  trap 'rm -f "$digest"' EXIT
  "$engine" push $flags --digestfile "$digest" "$image" >&2
  echo "$name@$(cat "$digest")"
fi
