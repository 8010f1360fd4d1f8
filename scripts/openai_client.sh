#!/usr/bin/env bash
# Runs OpenAI's Python client against `farpast serve` on the default model; installs the client into the user's cache folder first.
#
# usage: scripts/openai_client.sh FARPAST
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: scripts/openai_client.sh FARPAST" >&2 && exit 2; }
version=3.57.0
folder=${XDG_CACHE_HOME:-$HOME/.cache}/farpast/validators/openai-$version

if [ ! -f "$folder/done" ]; then
    rm -rf "$folder"
    python3 -m venv "$folder"
    "$folder/bin/pip" install --quiet --disable-pip-version-check "openai==$version"
    touch "$folder/done"
fi
exec "$folder/bin/python" "$(dirname "$0")/openai_client.py" "$1"
