// Which invocation this is, and of which of the workgroup's subgroups.
struct Lane {
    @builtin(local_invocation_index) index: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
}
