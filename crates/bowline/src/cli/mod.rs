//! The command line: what can be asked for, and who does it.

mod bench;
mod chat;
mod keys;
mod log;
mod mcp;
mod out;
mod serve;
mod settings;
mod state;
mod status;
mod tail;

use std::path::PathBuf;
use std::process::ExitCode;

use bowline_client::{Address, DEFAULT_HTTP, DEFAULT_WS, HttpClient};
use clap::{Args, Parser, Subcommand};

use crate::config::{Config, Flags, StoreUrl};

/// Keeps AI-agent sessions whole when any link breaks. Without a command it serves.
#[derive(Debug, Parser)]
#[command(name = "bowline", version, args_conflicts_with_subcommands = true)]
#[command(
    after_help = "Examples:\n  bowline                      # serve on 127.0.0.1:8080 with the demo agent\n  bowline chat                 # talk to it from another terminal"
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: ServeArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the server.
    #[command(after_help = "Example:\n  bowline serve --listen 127.0.0.1:8080 --store disk:./bowline-data")]
    Serve(ServeArgs),
    /// Talks to an agent from the terminal; survives lost connections and says so.
    #[command(
        after_help = "Examples:\n  bowline chat\n  bowline chat ws://127.0.0.1:8080/ws --session sess_…\n  echo '/echo hello' | bowline chat      # answers only, for scripts\n\nCtrl-C cancels a run; again, or when idle, it leaves. /quit leaves too."
    )]
    Chat(ChatArgs),
    /// Follows the events of a session, or of a task until it ends.
    #[command(
        after_help = "Examples:\n  bowline tail sess_… --json | jq .event\n  bowline tail task_…          # or turn_…: ends with it"
    )]
    Tail(TailArgs),
    /// Shows the server and its sessions on one screen.
    #[command(after_help = "Example:\n  bowline status --url http://127.0.0.1:8080")]
    Status(StatusArgs),
    /// Puts load on a server and says what its clients saw; exit code 1 if any missed an event or saw one twice.
    #[command(
        after_help = "Examples:\n  bowline bench\n  bowline bench ws://127.0.0.1:8080/ws --clients 200 --tokens 500 --cut --json"
    )]
    Bench(bench::BenchArgs),
    /// The MCP hub over stdin and stdout, for clients that spawn a program.
    #[command(
        after_help = "Examples:\n  bowline mcp --servers mcp.json      # what a desktop client is configured to run\n  bowline mcp --servers mcp.json --store disk:./hub-data\n\nWithout a store in the settings, in BOWLINE_STORE__URL or here, everything is in memory, and servers that were added at\nrun time go with the process. A store on disk belongs to one process: two clients that run this need two directories."
    )]
    Mcp(McpArgs),
    /// Shows or checks the settings.
    #[command(subcommand, after_help = "Example:\n  bowline config print")]
    Config(ConfigCommand),
    /// Makes, lists and retires the keys that seal states.
    #[command(subcommand, after_help = "Example:\n  bowline keys new --store disk:./bowline-data")]
    Keys(keys::KeysCommand),
    /// Shows or verifies a signed state without a server.
    #[command(subcommand, after_help = "Example:\n  bowline state verify state.json --owner alice")]
    State(state::StateCommand),
}

#[derive(Debug, Args)]
struct ServeArgs {
    /// Settings file [default: bowline.toml if there is one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address and port to listen on
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Where events live: disk:DIR, memory: or redis://HOST:PORT
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Agent of sessions that do not name one; a URL is an agent of kind `http`
    #[arg(long, value_name = "NAME|URL")]
    agent: Option<String>,
    /// Allow others to reach a server without auth
    #[arg(long)]
    insecure_no_auth: bool,
}

#[derive(Debug, Args)]
struct McpArgs {
    /// Settings file [default: bowline.toml if there is one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// File that names the servers, instead of the one in the settings
    #[arg(long, value_name = "FILE")]
    servers: Option<PathBuf>,
    /// Where events live: disk:DIR or memory: [default: what the settings say, else memory:]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Show this server only, as it is
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
}

#[derive(Debug, Args)]
struct ChatArgs {
    /// The server
    #[arg(value_name = "URL", default_value = DEFAULT_WS)]
    url: String,
    /// Come back to this session
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Credential [env: BOWLINE_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// Proof that the session is yours, where the server asks for one [env: BOWLINE_RESUME_TOKEN]
    #[arg(long, value_name = "TOKEN", requires = "session")]
    resume_token: Option<String>,
    /// Take the session over if another connection holds it
    #[arg(long, requires = "session")]
    take_over: bool,
    /// Agent to talk to, instead of the server's default
    #[arg(long, value_name = "NAME", conflicts_with = "session")]
    agent: Option<String>,
}

#[derive(Debug, Args)]
struct TailArgs {
    /// The session or task to follow
    session: String,
    /// Begin after this event: <epoch>-<seq> or <seq> [default: the first retained]
    #[arg(long, value_name = "CURSOR")]
    from: Option<String>,
    /// Print events as they are, one JSON object per line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
struct StatusArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
struct ServerArgs {
    /// The server
    #[arg(long, value_name = "URL", default_value = DEFAULT_HTTP)]
    url: String,
    /// Credential of an admin [env: BOWLINE_TOKEN]
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Prints every setting in force, with where it came from. Secrets are hidden.
    #[command(after_help = "Example:\n  bowline config print --config bowline.toml --json")]
    Print(ConfigArgs),
    /// Says whether the settings are right; exit code 1 if they are not.
    #[command(after_help = "Example:\n  bowline config check --config bowline.toml && systemctl restart bowline")]
    Check(ConfigArgs),
}

#[derive(Debug, Args)]
struct ConfigArgs {
    /// Settings file [default: bowline.toml if there is one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Does what the arguments ask, and tells the process how it went.
pub fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(code) => code,
        Err(error) if out::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            out::error(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command.unwrap_or(Command::Serve(cli.serve)) {
        Command::Serve(args) => {
            let loaded = Config::load(&args.flags())?;
            log::start(&loaded.config.log);
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            runtime.block_on(Box::pin(serve::run(loaded)))?;
        }
        Command::Mcp(args) => {
            let flags = Flags { config: args.config.clone(), store: args.store, ..Flags::default() };
            let mut loaded = Config::load(&flags)?;
            // A second program on the data of a running server would be refused, so that no two processes share a directory by accident.
            if !loaded.is_written("store.url") {
                loaded.config.store.url = StoreUrl::Memory;
            }
            if args.servers.is_some() {
                loaded.config.hub.servers_file = args.servers;
            }
            log::start(&loaded.config.log);
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            runtime.block_on(Box::pin(mcp::run(loaded, args.server)))?;
            // Reading stdin cannot be interrupted, so it is not awaited.
            runtime.shutdown_background();
        }
        Command::Chat(args) => return client_runtime()?.block_on(Box::pin(chat::run(args.into_start()?))),
        Command::Tail(args) => {
            let client = args.server.client()?;
            let tail = tail::TailCommand { client, session: args.session, from: args.from, json: args.json };
            client_runtime()?.block_on(Box::pin(tail.run()))?;
        }
        Command::Status(args) => {
            client_runtime()?.block_on(Box::pin(status::run(&args.server.client()?, args.json)))?;
        }
        Command::Bench(args) => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            return runtime.block_on(Box::pin(bench::run(args)));
        }
        Command::Config(ConfigCommand::Print(args)) => settings::print(&args.flags(), args.json)?,
        Command::Config(ConfigCommand::Check(args)) => settings::check(&args.flags(), args.json)?,
        Command::Keys(command) => keys::run(&command)?,
        Command::State(command) => return state::run(&command),
    }
    Ok(ExitCode::SUCCESS)
}

fn client_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

impl ServeArgs {
    fn flags(&self) -> Flags {
        Flags {
            config: self.config.clone(),
            listen: self.listen.clone(),
            store: self.store.clone(),
            agent: self.agent.clone(),
            insecure_no_auth: self.insecure_no_auth,
        }
    }
}

impl ConfigArgs {
    fn flags(&self) -> Flags {
        Flags { config: self.config.clone(), ..Flags::default() }
    }
}

impl ServerArgs {
    fn client(&self) -> anyhow::Result<HttpClient> {
        Ok(HttpClient::new(Address::parse(&self.url)?, token(self.token.clone(), "BOWLINE_TOKEN")))
    }
}

impl ChatArgs {
    fn into_start(self) -> anyhow::Result<chat::ChatStart> {
        Ok(chat::ChatStart {
            address: Address::parse(&self.url)?,
            named_url: (self.url != DEFAULT_WS).then_some(self.url),
            token: token(self.token, "BOWLINE_TOKEN"),
            resume_token: token(self.resume_token, "BOWLINE_RESUME_TOKEN").filter(|_| self.session.is_some()),
            session: self.session,
            take_over: self.take_over,
            agent: self.agent,
        })
    }
}

/// A credential from the flag, else from the environment; an empty one is none.
fn token(flag: Option<String>, variable: &str) -> Option<String> {
    flag.or_else(|| std::env::var(variable).ok()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent_and_every_command_has_an_example() {
        use clap::CommandFactory;
        let command = Cli::command();
        command.clone().debug_assert();
        let nested = command.get_subcommands().flat_map(|one| one.get_subcommands());
        for one in command.get_subcommands().chain(nested) {
            let help = one.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("bowline "), "{} has no example", one.get_name());
        }
    }

    #[test]
    fn without_a_command_it_serves_with_the_flags_given() {
        let cli = Cli::try_parse_from(["bowline", "--listen", "127.0.0.1:1"]).unwrap();
        assert!(cli.command.is_none());
        assert_eq!(cli.serve.flags().listen.as_deref(), Some("127.0.0.1:1"));
        assert!(Cli::try_parse_from(["bowline", "chat", "--take-over"]).is_err());
    }
}
