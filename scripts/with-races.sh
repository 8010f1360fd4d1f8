#!/usr/bin/env bash
# Runs a command that dispatches shaders on a software driver under the Vulkan validation layer, and fails if a shader
# reads workgroup memory that another invocation may be writing: a missing workgroupBarrier, which a CPU driver hides.
# Some ten times slower than without. The layer instruments every pipeline by itself; the command need not know of it.
#
# usage: scripts/with-races.sh lavapipe|swiftshader COMMAND...
set -euo pipefail

scripts=$(cd "$(dirname "$0")" && pwd)
layer=${XDG_CACHE_HOME:-$HOME/.cache}/farpast/drivers/swiftshader # scripts/drivers.sh swiftshader puts it there
log=$(mktemp)
trap 'rm -f "$log"' EXIT

if [ ! -f "$layer/libVkLayer_khronos_validation.so" ]; then
    echo "with-races: no validation layer; install it with scripts/drivers.sh swiftshader" >&2
    exit 2
fi
export VK_LAYER_PATH=$layer VK_INSTANCE_LAYERS=VK_LAYER_KHRONOS_validation
export VK_LAYER_VALIDATE_CORE=0 VK_LAYER_GPUAV_ENABLE=1 VK_LAYER_REPORT_FLAGS=error,warn
status=0
"$scripts/with-driver.sh" "$@" >"$log" 2>&1 || status=$?

# The first line of an error may follow a test's name on the same line.
grep -E '^(test |running |error|thread )|Validation Error|data race' "$log" | uniq | head -n 400 || true
# The layer says of each device which of its features it switches on: without that it was not at work.
if ! grep -q 'WARNING-Setting-Limit-Adjusted' "$log"; then
    tail -n 40 "$log"
    echo "with-races: the validation layer did not load, or nothing used a device" >&2
    exit 2
fi
if grep -q 'Validation Error' "$log"; then
    echo "with-races: $(grep -c 'Validation Error' "$log") errors" >&2
    exit 1
fi
# Under the layer some processes abort at their exit: tests that have given their verdict by then have passed or failed.
if grep -q '^test result: ' "$log" && ! grep -qE '^test result: FAILED|panicked at' "$log"; then
    exit 0
fi
exit "$status"
