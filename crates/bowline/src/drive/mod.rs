//! The only places that wait for several things at once. A driver feeds a machine one thing and drains it; it holds no
//! rule of its own.

pub mod connection;
pub mod session;
pub mod tail;

#[cfg(test)]
mod tests {
    use super::*;

    fn future_size<A, B, C, F: Future>(_: impl Fn(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn what_an_idle_session_keeps_is_small() {
        println!("{} {}", future_size(connection::drive), future_size(session::drive));
    }
}
