#!/usr/bin/env bash
# Installs Dawn, whose WGSL compiler Tint scripts/tint.mjs asks about every shader, into the user's cache folder.
# Instant when it is there already. Nothing of the package runs while it is installed.
set -euo pipefail

version=0.6.2
folder=${XDG_CACHE_HOME:-$HOME/.cache}/farpast/validators

say() { echo "validators: $*" >&2; }
fail() {
    say "$*"
    exit 1
}

if [ ! -f "$folder/webgpu-$version/node_modules/webgpu/package.json" ]; then
    for command in node npm; do
        command -v "$command" >/dev/null || fail "$command is needed; install Node.js 18 or later with npm"
    done
    mkdir -p "$folder"
    work=$(mktemp -d "$folder/.fetch.XXXXXX") # on the same file system, so that the rename is atomic
    trap 'rm -rf "$work"' EXIT
    say "installing webgpu $version"
    npm install --prefix "$work" --ignore-scripts --no-audit --no-fund --no-package-lock --loglevel=error "webgpu@$version" >&2 </dev/null
    rm -rf "$folder/webgpu-$version"
    mv "$work" "$folder/webgpu-$version"
fi
