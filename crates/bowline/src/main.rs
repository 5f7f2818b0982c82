//! The `bowline` program; everything is in the library.

/// Memory that was freed goes back to the system soon; the C library of Linux keeps what lies between living allocations.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    bowline::cli::main()
}
