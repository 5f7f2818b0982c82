//! A limit on every wait in a test: one that is still at it after so long hangs, and the run ends and says which.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, Once, Weak};
use std::time::{Duration, Instant};

/// Longer than any test takes, even on a busy machine.
const TEST_MAX: Duration = Duration::from_secs(900);
const LOOK_EVERY: Duration = Duration::from_secs(1);

struct Watched {
    name: String,
    since: Instant,
    alive: Weak<()>,
}

static WATCHED: Mutex<Vec<Watched>> = Mutex::new(Vec::new());

thread_local! {
    /// Each test has a thread of its own, and this ends with it.
    static ALIVE: RefCell<Option<Arc<()>>> = const { RefCell::new(None) };
}

/// Limits the test that calls this. To be called by whatever makes the things that a test waits for.
pub fn limit() {
    static ONCE: Once = Once::new();
    ALIVE.with_borrow_mut(|slot| {
        if slot.is_some() {
            return;
        }
        let alive = slot.insert(Arc::new(()));
        let name = std::thread::current().name().unwrap_or("a test").to_owned();
        WATCHED.lock().unwrap().push(Watched { name, since: Instant::now(), alive: Arc::downgrade(alive) });
    });
    ONCE.call_once(|| drop(std::thread::spawn(watch)));
}

fn watch() {
    loop {
        std::thread::sleep(LOOK_EVERY);
        let mut watched = WATCHED.lock().unwrap();
        watched.retain(|test| test.alive.strong_count() > 0);
        if let Some(test) = watched.iter().find(|test| test.since.elapsed() > TEST_MAX) {
            eprintln!("`{}` is still waiting after {} s: it hangs", test.name, TEST_MAX.as_secs());
            // Nothing else ends a test that waits for ever.
            std::process::abort();
        }
    }
}
