//! Whatever a client sends as a text frame, reading it does not panic.
#![no_main]

use bowline_protocol::frame::ClientFrame;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = ClientFrame::parse(text, 64);
    }
});
