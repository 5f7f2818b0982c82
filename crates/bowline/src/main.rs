//! The `bowline` program; everything is in the library.

fn main() -> std::process::ExitCode {
    bowline::cli::main()
}
