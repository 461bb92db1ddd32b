#!/bin/sh
# Pushes the released images to the registry $2 with $1, and writes build/release/notes.md: the changelog's section of
# this version, then each image by digest. The training image is not published, because libtpu's licence forbids it.
set -eu
engine=$1 registry=$2
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
if [ "${GITHUB_REF_NAME:-v$version}" != "v$version" ]; then
  echo "error: the tag is $GITHUB_REF_NAME, and pyproject.toml has version $version. Make them the same." >&2
  exit 2
fi
if grep -q "^## $version (unreleased)" CHANGELOG.md; then
  echo "error: CHANGELOG.md still says '## $version (unreleased)'. Write the date there, and tag that commit." >&2
  exit 2
fi
mkdir -p build/release
notes=build/release/notes.md
sed -n "/^## $version\b/,/^## [0-9]/{/^## [0-9]/!p}" CHANGELOG.md >"$notes"
if [ ! -s "$notes" ]; then
  echo "error: CHANGELOG.md has no section '## $version'. Add it." >&2
  exit 2
fi
printf '\n### Images\n\n' >>"$notes"
for image in steps serving; do
  name=$registry/$image:$version
  "$engine" tag "tpu-pipelines/$image:latest" "$name"
  printf -- '- `%s`\n' "$(sh docker/push.sh "$engine" "$name")" >>"$notes"
done
cat "$notes"
