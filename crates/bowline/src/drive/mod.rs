//! The only places that wait for several things at once. A driver feeds a machine one thing and drains it; it holds no
//! rule of its own.

pub mod cluster;
pub mod connection;
pub mod produce;
pub mod session;
pub mod settings;
pub mod stream;
pub mod tail;
pub mod task;

#[cfg(test)]
mod tests {
    use super::*;

    fn future_size<A, B, C, F: Future>(_: impl Fn(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    /// A task keeps room for everything that lives across a wait, so one careless binding costs every idle session.
    #[test]
    fn what_an_idle_session_waits_in_is_small() {
        assert!(future_size(connection::drive) <= 1024, "{} bytes", future_size(connection::drive));
        assert!(future_size(session::drive) <= 640, "{} bytes", future_size(session::drive));
    }
}
