//! Drivers: they wait for several things at once. A driver feeds a machine one thing and drains it; it holds no rule of
//! its own.

pub mod cluster;
pub mod connection;
pub mod settings;
pub mod stream;
pub mod tail;

#[cfg(test)]
mod tests {
    use super::*;

    fn future_size<A, B, C, F: Future>(_: impl Fn(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    /// A task keeps room for everything that lives across a wait, so one careless binding costs every idle connection.
    #[test]
    fn what_an_idle_connection_waits_in_is_small() {
        assert!(future_size(connection::drive) <= 1024, "{} bytes", future_size(connection::drive));
    }
}
