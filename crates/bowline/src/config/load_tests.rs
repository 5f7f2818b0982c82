//! Loading as a whole: order of sources, refusals and what is shown.

use super::*;
use crate::config::key::Kind;
use crate::config::{AgentKind, AuthMode, JwtKeys, Ownership, StoreUrl, WireConfig};

/// A directory and an environment of its own for each test.
struct Scene {
    dir: tempfile::TempDir,
    variables: BTreeMap<String, String>,
    flags: Flags,
}

impl Scene {
    fn new(file: &str) -> Scene {
        let dir = tempfile::tempdir().unwrap();
        if !file.is_empty() {
            std::fs::write(dir.path().join(FILE_NAME), file).unwrap();
        }
        Scene { dir, variables: BTreeMap::new(), flags: Flags::default() }
    }

    fn env(mut self, name: &str, text: &str) -> Scene {
        self.variables.insert(name.into(), text.into());
        self
    }

    fn load(&self) -> Result<Loaded, ConfigError> {
        let around = Surroundings {
            variables: self.variables.clone(),
            dir: self.dir.path().to_owned(),
            ..Surroundings::default()
        };
        Config::load_from(&self.flags, &around)
    }

    fn error(&self) -> String {
        self.load().expect_err("this must be refused").to_string()
    }
}

fn source(loaded: &Loaded, key: &str) -> String {
    effective(loaded)["settings"][key]["source"].as_str().unwrap().to_owned()
}

/// The settings in force as they are shown.
fn effective(loaded: &Loaded) -> serde_json::Value {
    serde_json::to_value(loaded.effective()).unwrap()
}

#[test]
fn what_is_not_written_is_the_tables_default() {
    let loaded = Scene::new("").load().unwrap();
    assert_eq!(format!("{:#?}", loaded.config), format!("{:#?}", Config::default()));
    assert_eq!((loaded.config.limits.json_depth_max, loaded.config.drain.timeout.as_secs()), (64, 30));
    assert!(loaded.settings.iter().all(|setting| setting.source == Source::Default));
}

#[test]
fn flags_win_over_the_environment_which_wins_over_the_file() {
    let file = "listen = \"127.0.0.1:1\"\n[heartbeat]\ninterval = \"1s\"\n[session]\nttl = \"1h\"\n";
    let mut scene = Scene::new(file).env("BOWLINE_LISTEN", "127.0.0.1:2").env("BOWLINE_HEARTBEAT__INTERVAL", "2s");
    scene.flags.listen = Some("127.0.0.1:3".into());
    let loaded = scene.load().unwrap();
    assert_eq!(loaded.config.listen.port(), 3);
    assert_eq!(loaded.config.heartbeat.interval.as_secs(), 2);
    assert_eq!(loaded.config.session.ttl.as_secs(), 3600);
    assert_eq!(source(&loaded, "listen"), "flag --listen");
    assert_eq!(source(&loaded, "heartbeat.interval"), "environment BOWLINE_HEARTBEAT__INTERVAL");
    assert_eq!(source(&loaded, "session.ttl"), "bowline.toml:5");
    assert_eq!(source(&loaded, "drain.timeout"), "default");
}

#[test]
fn every_setting_can_come_from_the_environment() {
    for key in keys() {
        let path = key.name.replace(AGENT_NAME, "demo");
        let name = format!("BOWLINE_{}", path.replace('.', "__").to_uppercase());
        let text = match (key.default, key.kind) {
            ("", Kind::Bool) => "true",
            ("", Kind::Number { .. }) => "1",
            ("", _) => "principal",
            (default, _) => default,
        };
        let mut written = Written::default();
        written.add_env([(name.clone(), text.to_owned())]).unwrap();
        assert!(written.is_written(&path), "{name}");
    }
}

#[test]
fn refusals_name_the_key_the_place_and_what_would_be_right() {
    let cases = [
        (
            "[hearbeat]\ninterval = \"1s\"",
            "unknown setting `hearbeat.interval` (bowline.toml:2); did you mean `heartbeat.interval`?",
        ),
        ("\nlisten = 8080", "`listen` (bowline.toml:2): expected text, got 8080"),
        ("[heartbeat]\ninterval = 30", "`heartbeat.interval` (bowline.toml:2): expected a duration above zero"),
        ("listen = \"nowhere\"", "`listen` (bowline.toml:1): expected an address and port"),
        ("store = 5", "unknown setting `store` (bowline.toml:1)"),
        ("[session]\nttl.x = 1", "`session.ttl` (bowline.toml:2): expected a duration"),
        ("[store]\nsync = \"never\"", "expected one of \"always\", \"interval\", got \"never\""),
        (
            "[store]\nurl = \"redis://:pw@x?y=z\"",
            "`store.url` (bowline.toml:2): expected a Redis URL (y is not known in a Redis URL",
        ),
        ("[store]\nurl = \"disc:x\"", "expected \"disk:DIR\", \"memory:\" or \"redis://HOST\", got \"disc:x\""),
        ("[tls]\ncert = \"x\"", "`tls.key`"),
        ("[tls]\nkey = \"x\"", "`tls.cert`"),
        (
            "[agents.mine]\nseed = 2",
            "`agents.mine.kind` (bowline.toml:2): expected \"demo\", \"openai\" or \"http\", got nothing",
        ),
        (
            "[agents.mine]\nkind = \"openal\"",
            "`agents.mine.kind` (bowline.toml:2): expected \"demo\", \"openai\" or \"http\"",
        ),
        ("[agents.helper]\nkind = \"openai\"", "`agents.helper.base_url` (default): expected text that is not empty"),
        (
            "[agents.helper]\nkind = \"openai\"\nbase_url = \"x\"",
            "`agents.helper.base_url` (bowline.toml:3): expected a URL",
        ),
        ("[agents.helper]\nkind = \"http\"\nurl = \"ftp://x/\"", "expected an http or https URL"),
        ("[agents.helper]\nkind = \"http\"\nurl = \"https://me:s3cret@x/\"", "got one with a name or password in it"),
        ("[agents.helper]\nkind = \"http\"\nurl = \"http://x/\"\nformat = \"xml\"", "expected one of \"auto\", \"ui\""),
        (
            "[agents.helper]\nkind = \"http\"\nurl = \"http://x/\"\ntoken_env = \"NONE\"",
            "an environment variable that is set, got \"NONE\"",
        ),
        (
            "[agents.helper]\nkind = \"http\"\nurl = \"http://x/\"\nmodel = \"m\"",
            "`agents.helper.model` (bowline.toml:4) means nothing to an agent of kind \"http\"",
        ),
        ("default_agent = \"http://x\"\n[agents.http]\nkind = \"demo\"", "there is one of that name"),
        ("default_agent = \"mine\"", "expected the name of a configured agent (\"demo\"), or a URL, got \"mine\""),
        ("default_agent = \"ftp://x\"", "`default_agent` (bowline.toml:1): expected an http or https URL"),
        ("[auth]\norigins = [\"https://app.example/path\"]", "expected origins such as"),
        ("listen = ", "bowline.toml:1: not TOML"),
        ("[log]\nlevel = \"bowline=loud\"", "`log.level` (bowline.toml:2): expected a filter"),
        ("[lease]\nttl = \"100ms\"", "`lease.ttl` (bowline.toml:2): expected 400 ms or longer, got \"100ms\""),
        ("[limits]\njson_depth_max = 1000", "expected a whole number from 4 to 127, got 1000"),
    ];
    for (file, expected) in cases {
        let error = Scene::new(file).error();
        assert!(error.contains(expected), "{file:?} gave: {error}");
    }
}

#[test]
fn an_unknown_variable_of_ours_is_refused_and_others_are_left_alone() {
    let error = Scene::new("").env("BOWLINE_STORE_URL", "memory:").error();
    assert!(error.contains("did you mean `BOWLINE_STORE__URL`?"), "{error}");
    let scene = Scene::new("").env("STORE__URL", "x").env("BOWLINE_TOKEN", "t").env("BOWLINE_LISTEN", "");
    assert!(scene.load().is_ok());
    let scene = Scene::new("").env("BOWLINE_AGENTS__SWIFT__KIND", "demo").env("BOWLINE_AGENTS__SWIFT__SPEED", "0");
    assert_eq!(scene.load().unwrap().config.agents.len(), 2);
}

#[test]
fn access_without_auth_must_be_asked_for() {
    for listen in ["0.0.0.0:80", "192.168.1.5:80", "[::]:80"] {
        let file = format!("listen = \"{listen}\"");
        assert!(Scene::new(&file).error().contains("--insecure-no-auth"), "{listen}");
        let mut scene = Scene::new(&file);
        scene.flags.insecure_no_auth = true;
        assert_eq!(scene.load().unwrap().config.session.ownership, Ownership::Token);
    }
    for listen in ["127.0.0.1:80", "127.9.9.9:80", "[::1]:80", "localhost:80", "[::ffff:127.0.0.1]:80"] {
        let loaded = Scene::new(&format!("listen = \"{listen}\"")).load().unwrap();
        assert_eq!(loaded.config.session.ownership, Ownership::Open, "{listen}");
        assert_eq!(effective(&loaded)["settings"]["session.ownership"]["value"], "open");
    }
}

#[test]
fn ownership_that_would_prove_nothing_is_refused() {
    assert!(Scene::new("[session]\nownership = \"principal\"").error().contains("same principal"));
    let open =
        "[session]\nownership = \"open\"\n[auth]\nmode = \"tokens\"\ntokens = [{ token = \"t\", principal = \"a\" }]";
    assert!(Scene::new(open).error().contains("safe only on loopback without auth"));
    let tokens = "listen = \"0.0.0.0:1\"\n[auth]\nmode = \"tokens\"\ntokens = [{ token = \"t\", principal = \"a\" }]";
    assert_eq!(Scene::new(tokens).load().unwrap().config.session.ownership, Ownership::Principal);
}

#[test]
fn credentials_without_a_mode_are_not_silently_ignored() {
    let tokens = "[auth]\ntokens = [{ token = \"t\", principal = \"a\" }]";
    assert!(Scene::new(tokens).error().contains("`auth.mode` is not"));
    assert!(Scene::new(tokens).env("BOWLINE_AUTH__MODE", "none").load().is_ok());
    assert!(Scene::new("[auth]\nmode = \"tokens\"").error().contains("empty"));
    assert!(Scene::new("[auth]\nmode = \"jwt\"").error().contains("exactly one kind of key"));
    let twice = "[auth]\nmode = \"tokens\"\ntokens = [{ token = \"t\", principal = \"a\" }, { token = \"t\", principal = \"b\" }]";
    assert!(Scene::new(twice).error().contains("same token twice"));
}

#[test]
fn secrets_are_followed_and_never_shown() {
    let file = "[auth]\nmode = \"tokens\"\n[[auth.tokens]]\ntoken = \"env:ALICE\"\nprincipal = \"alice\"\nadmin = true\n\
                [[auth.tokens]]\ntoken = \"file:bob.txt\"\nprincipal = \"bob\"\n";
    let scene = Scene::new(file).env("ALICE", "wonderland");
    std::fs::write(scene.dir.path().join("bob.txt"), "builder\n").unwrap();
    let loaded = scene.load().unwrap();
    let AuthMode::Tokens(tokens) = &loaded.config.auth.mode else { panic!() };
    assert_eq!((tokens[0].token.expose(), tokens[0].admin), ("wonderland", true));
    assert_eq!((tokens[1].token.expose(), tokens[1].admin), ("builder", false));
    let shown = format!("{loaded:?} {}", effective(&loaded));
    assert!(!shown.contains("wonderland") && !shown.contains("builder"));
    assert!(Scene::new(file).error().contains("the environment variable ALICE, which is not set"));
}

#[test]
fn a_key_set_comes_from_a_safe_place_only() {
    let scene = |url: &str| Scene::new(&format!("[auth]\nmode = \"jwt\"\njwks_url = \"{url}\"\njwks_refresh = \"1m\""));
    for good in ["https://id.example/jwks", "http://127.0.0.1:9/jwks", "http://localhost/jwks", "http://[::1]:9/jwks"] {
        let AuthMode::Jwt(jwt) = scene(good).load().unwrap().config.auth.mode else { panic!() };
        assert!(matches!(jwt.keys, JwtKeys::JwksUrl { refresh, .. } if refresh.as_secs() == 60), "{good}");
    }
    for bad in ["http://id.example/jwks", "ftp://127.0.0.1/x", "id.example", "http://127.0.0.1.evil.example/"] {
        assert!(scene(bad).error().contains("auth.jwks_url"), "{bad}");
    }
}

#[test]
fn a_short_jwt_secret_is_refused_without_being_shown() {
    let scene = Scene::new("[auth]\nmode = \"jwt\"\n").env("BOWLINE_AUTH__JWT_SECRET", "tooshort");
    let error = scene.error();
    assert!(error.contains("at least 32 bytes") && !error.contains("tooshort"), "{error}");
    let error = Scene::new("[auth]\nmode = \"jwt\"\njwt_secret = [\"oops\"]").error();
    assert!(!error.contains("oops"), "{error}");
    let scene = Scene::new("[auth]\nmode = \"jwt\"\n").env("BOWLINE_AUTH__JWT_SECRET", &"x".repeat(32));
    let AuthMode::Jwt(jwt) = scene.load().unwrap().config.auth.mode else { panic!() };
    assert!(matches!(jwt.keys, JwtKeys::Secret(_)));
}

/// 32 bytes of zeros.
const ZEROS: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

#[test]
fn keys_of_state_are_followed_and_never_shown() {
    let file =
        format!("[state]\nkeys = [\"env:NEW\", \"file:old.txt\", \"k1:{ZEROS}\"]\nttl = \"1h\"\nscrub = [\"x_code\"]");
    let scene = Scene::new(&file).env("NEW", &format!("k3:{}", "-_".repeat(22)));
    std::fs::write(scene.dir.path().join("old.txt"), format!("k2:{}\n", ZEROS.trim_end_matches('='))).unwrap();
    let loaded = scene.load().unwrap();
    let state = &loaded.config.state;
    assert_eq!(state.keys.iter().map(bowline_core::SealKey::id).collect::<Vec<_>>(), ["k3", "k2", "k1"]);
    assert_eq!((state.ttl.as_secs(), state.scrub.as_slice()), (3600, ["x_code".to_owned()].as_slice()));
    let shown = format!("{:?} {}", loaded.config, effective(&loaded));
    assert!(!shown.contains("AAAA") && shown.contains("(hidden)"), "{shown}");
}

#[test]
fn a_key_that_is_short_or_unclear_is_refused_without_being_shown() {
    let cases = [
        ("k1:c2hvcnQgYW5kIHNlY3JldA==", "the key `k1` has 16 bytes; at least 32 are needed"),
        ("c2hvcnQ", "not `ID:BASE64`"),
        ("k1:!!!!", "not base64"),
        ("a b:AAAA", "letters, digits"),
        ("env:NOT_THERE", "NOT_THERE, which is not set"),
    ];
    for (key, expected) in cases {
        let error = Scene::new(&format!("[state]\nkeys = [\"{key}\"]")).error();
        assert!(error.contains(expected) && error.contains("bowline.toml:2") && !error.contains("c2hv"), "{error}");
    }
    let twice = Scene::new(&format!("[state]\nkeys = [\"k:{ZEROS}\", \"k:{ZEROS}\"]")).error();
    assert!(twice.contains("two keys have the id `k`"), "{twice}");
    let large = Scene::new("[state]\nbytes_max = \"1MiB\"").error();
    assert!(large.contains("not brought back"), "{large}");
}

#[test]
fn a_named_file_must_exist_but_the_usual_one_need_not() {
    let mut scene = Scene::new("");
    assert_eq!(scene.load().unwrap().file, None);
    scene.flags.config = Some("other.toml".into());
    assert!(scene.error().contains("cannot read other.toml"));
    std::fs::write(scene.dir.path().join("other.toml"), "[store]\nurl = \"memory:\"").unwrap();
    assert_eq!(scene.load().unwrap().config.store.url, StoreUrl::Memory);
}

const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/settings.md");
const BEGIN: &str = "<!-- settings: begin (written by `UPDATE_DOCS=1 cargo test -p bowline settings_page`) -->\n";
const END: &str = "<!-- settings: end -->";

fn table_of_settings() -> String {
    let mut text = String::from("\n| setting | kind | default | what it does |\n|---|---|---|---|\n");
    for key in keys() {
        let kind = match key.kind {
            Kind::Choice(words) => words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" \\| "),
            kind => kind.name().to_owned(),
        };
        let default = if key.default.is_empty() { "not set".to_owned() } else { format!("`{}`", key.default) };
        text.push_str(&format!("| `{}` | {kind} | {default} | {} |\n", key.name, key.about));
    }
    text.push('\n');
    text
}

#[test]
fn the_settings_page_lists_every_setting_with_its_default() {
    let page = std::fs::read_to_string(DOCS).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("docs/settings.md has lost its begin mark");
    let (table, after) = rest.split_once(END).expect("docs/settings.md has lost its end mark");
    let wanted = table_of_settings();
    if table == wanted {
        return;
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(DOCS, format!("{before}{BEGIN}{wanted}{END}{after}")).unwrap();
        return;
    }
    panic!("docs/settings.md is out of date; run with UPDATE_DOCS=1 or paste:\n{wanted}");
}

#[test]
fn a_url_in_place_of_a_name_is_an_agent() {
    let mut scene = Scene::new("");
    scene.flags.agent = Some("http://127.0.0.1:3000/api/chat".into());
    let loaded = scene.load().unwrap();
    assert_eq!(loaded.config.default_agent, "http");
    let AgentKind::Http(http) = &loaded.config.agents["http"].kind else { panic!() };
    assert_eq!((http.url.as_str(), http.format), ("http://127.0.0.1:3000/api/chat", None));
    assert_eq!(source(&loaded, "default_agent"), "flag --agent");
}

#[test]
fn an_agents_keys_come_from_the_environment_and_are_never_shown() {
    let file = "[agents.helper]\nkind = \"openai\"\nbase_url = \"https://api.example/v1\"\nmodel = \"m\"\n\
                api_key_env = \"HELPER_KEY\"\nheaders_env = \"HELPER_HEADERS\"\n";
    let scene = Scene::new(file).env("HELPER_KEY", "s3cret-1\n").env("HELPER_HEADERS", "{\"x-key\": \"s3cret-2\"}");
    let loaded = scene.load().unwrap();
    let AgentKind::OpenAi(openai) = &loaded.config.agents["helper"].kind else { panic!() };
    assert_eq!(openai.wire.token.as_ref().unwrap().expose(), "s3cret-1");
    assert_eq!(openai.wire.headers[0].0, "x-key");
    let shown = format!("{:?} {}", loaded.config, effective(&loaded));
    assert!(shown.contains("HELPER_KEY") && !shown.contains("s3cret"), "{shown}");
    for broken in ["x-key: s3cret-2", "{\"x key\": \"s3cret-2\"}", "[1]"] {
        let error = Scene::new(file).env("HELPER_KEY", "k").env("HELPER_HEADERS", broken).error();
        assert!(error.contains("agents.helper.headers_env") && !error.contains("s3cret"), "{error}");
    }
    assert!(effective(&loaded)["settings"]["agents.demo.model"].is_null(), "a demo agent has no model");
}

#[test]
fn an_agent_behind_http_has_the_tables_defaults() {
    let loaded = Scene::new("[agents.mine]\nkind = \"http\"\nurl = \"http://x/\"").load().unwrap();
    let AgentKind::Http(http) = &loaded.config.agents["mine"].kind else { panic!() };
    assert_eq!(format!("{:?}", http.wire), format!("{:?}", WireConfig::default()));
}
