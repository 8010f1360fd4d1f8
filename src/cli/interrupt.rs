//! Ctrl-C: stops what can be stopped, else ends the program.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The exit code of shells for a program that Ctrl-C ended.
pub const CODE: u8 = 130;

/// Ctrl-C was pressed while something was ready to stop for it.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static STOPPABLE: AtomicBool = AtomicBool::new(false);

/// From now on Ctrl-C is seen. The second press ends the program even if nothing looks at the first.
pub fn watch() {
    let on_interrupt = || {
        if !STOPPABLE.load(Relaxed) || INTERRUPTED.swap(true, Relaxed) {
            std::process::exit(CODE.into());
        }
    };
    if let Err(e) = ctrlc::set_handler(on_interrupt) {
        super::output::note(format_args!("Ctrl-C will end the program at once: {e}"));
    }
}

/// While it lives Ctrl-C does not end the program: who holds it looks at [`interrupted`].
pub struct Stoppable;

impl Stoppable {
    pub fn new() -> Self {
        INTERRUPTED.store(false, Relaxed);
        STOPPABLE.store(true, Relaxed);
        Self
    }
}

impl Drop for Stoppable {
    fn drop(&mut self) {
        STOPPABLE.store(false, Relaxed);
    }
}

/// Whether Ctrl-C was pressed while something could stop for it.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Relaxed)
}

/// How a command ends that has stopped early if Ctrl-C was pressed.
pub fn exit_code() -> ExitCode {
    if interrupted() { CODE.into() } else { ExitCode::SUCCESS }
}
