#!/usr/bin/env bash
# Runs a command on one Vulkan driver and tells it which by FARPAST_TEST_DRIVER.
#
# usage: scripts/with-driver.sh lavapipe|swiftshader|system COMMAND...
#
# `system` changes nothing about the drivers: it is for a machine with a GPU.
set -euo pipefail

usage="usage: scripts/with-driver.sh lavapipe|swiftshader|system COMMAND..."
[ $# -ge 2 ] || { echo "$usage" >&2 && exit 2; }
driver=$1
shift

manifest=''
case $driver in
lavapipe) manifest=$(compgen -G '/usr/share/vulkan/icd.d/lvp_icd*.json' | sed -n 1p || true) ;;
swiftshader) manifest=${XDG_CACHE_HOME:-$HOME/.cache}/farpast/drivers/swiftshader/vk_swiftshader_icd.json ;;
system) ;;
*) echo "$usage" >&2 && exit 2 ;;
esac

if [ "$driver" != system ]; then
    if [ ! -f "$manifest" ]; then
        echo "with-driver: no $driver here; install it with scripts/drivers.sh" >&2
        exit 1
    fi
    # The second is what loaders before 1.3.207 read.
    export VK_DRIVER_FILES=$manifest VK_ICD_FILENAMES=$manifest WGPU_BACKEND=vulkan
fi
export FARPAST_TEST_DRIVER=$driver
exec "$@"
