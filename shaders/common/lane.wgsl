// Which invocation this is.
struct Lane {
    @builtin(local_invocation_index) index: u32,
}
