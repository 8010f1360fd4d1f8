//! The command line `farpast`.

fn main() -> std::process::ExitCode {
    farpast::cli::run(std::env::args_os())
}
