#!/usr/bin/env bash
# Runs a command on one Vulkan driver and tells it which by FARPAST_TEST_DRIVER.
#
# usage: scripts/with-driver.sh lavapipe|swiftshader|coopmat|system COMMAND...
#
# `coopmat` is a lavapipe of another distribution: cargo has what it builds run with the libc that it needs, and so runs a COMMAND
# other than cargo, a compiled one. `system` changes nothing about the drivers: it is for a machine with a GPU.
set -euo pipefail

usage="usage: scripts/with-driver.sh lavapipe|swiftshader|coopmat|system COMMAND..."
[ $# -ge 2 ] || { echo "$usage" >&2 && exit 2; }
driver=$1
shift

drivers=${XDG_CACHE_HOME:-$HOME/.cache}/farpast/drivers
manifest=''
case $driver in
lavapipe) manifest=$(compgen -G '/usr/share/vulkan/icd.d/lvp_icd*.json' | sed -n 1p || true) ;;
swiftshader) manifest=$drivers/swiftshader/vk_swiftshader_icd.json ;;
coopmat) manifest=$drivers/coopmat/lvp_icd.json ;;
system) ;;
*) echo "$usage" >&2 && exit 2 ;;
esac

if [ "$driver" != system ]; then
    if [ ! -f "$manifest" ]; then
        echo "with-driver: no $driver here; install it with scripts/drivers.sh $driver" >&2
        exit 1
    fi
    # The second is what loaders before 1.3.207 read.
    export VK_DRIVER_FILES=$manifest VK_ICD_FILENAMES=$manifest WGPU_BACKEND=vulkan
fi
export FARPAST_TEST_DRIVER=$driver
if [ "$driver" = coopmat ]; then
    loader=("$drivers"/coopmat/lib/ld-linux*.so.* --library-path "$drivers/coopmat/lib")
    if [ "$1" != cargo ]; then
        program=$(command -v "$1")
        shift
        exec "${loader[@]}" "$program" "$@"
    fi
    host=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
    export "CARGO_TARGET_${host}_RUNNER=${loader[*]}"
fi
exec "$@"
