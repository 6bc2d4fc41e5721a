//! The `uform` command.

fn main() {
    std::process::exit(uform_launch::run(std::env::args_os()));
}
