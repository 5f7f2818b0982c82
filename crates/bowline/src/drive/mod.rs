//! The only places that wait for several things at once. A driver feeds a machine one thing and drains it; it holds no
//! rule of its own.

pub mod connection;
pub mod session;
pub mod tail;
