//! Whatever a client sends as a text frame, reading it does not panic.
#![no_main]

use bowline_protocol::frame::Request;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = Request::parse(text, 64);
    }
});
