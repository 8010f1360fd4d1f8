// Which invocation this is, of its workgroup and of its subgroup.
struct Lane {
    @builtin(local_invocation_index) index: u32,
    @builtin(subgroup_invocation_id) in_subgroup: u32,
}
