//! A chat in the terminal, as `farpast chat`: `cargo run --release --example chat`. Fetches a small model on first use; `-m FILE`
//! takes any GGUF.

fn main() -> std::process::ExitCode {
    let mut arguments: Vec<_> = std::env::args_os().collect();
    arguments.insert(1.min(arguments.len()), "chat".into());
    farpast::cli::run(arguments)
}
