//! The program: the command line, and the wiring of the other crates into a running cluster.
//!
//! Every output for people and every exit code is decided here: 0 success, 1 the answer is "no" or the work failed, 2 wrong input or
//! set-up. Data goes to stdout, logs and errors to stderr. Start at [`up`].

// An `expect` names the invariant that holds; tests may use `unwrap`.
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod apiserver;
mod bench;
mod certs;
mod check;
mod cli;
mod cloud;
mod clusters;
mod controller;
mod devices;
mod doctor;
mod failure;
mod fault;
mod files;
mod image_facts;
mod input;
mod kubeconfig;
mod lines;
mod logged;
mod memory;
mod near;
mod nodes;
mod open_files;
mod out;
mod plan;
mod reach;
mod simulated_cloud;
mod traces;
mod up;
mod why;

use std::process::ExitCode;

use clap::CommandFactory;
use tracing_subscriber::EnvFilter;

use cli::{Bench, Cli, Command, ConnectivityCommand, SnapshotCommand};
use clusters::{NamedCluster, snapshot};
use failure::Failure;

/// Writes allocate thousands of small pieces on all threads; this allocator needs a fifth less CPU than that of glibc.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match cli::parse().and_then(run) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            out::error(&failure);
            ExitCode::from(failure.code())
        }
    }
}

/// Runs a command. Returns false if it succeeded and the answer is "no".
fn run(cli: Cli) -> Result<bool, Failure> {
    let done = match cli.command {
        Command::Check(args) => {
            return runtime()?.block_on(check::run(args));
        }
        Command::Doctor(args) => {
            return runtime()?.block_on(doctor::run(args));
        }
        Command::Connectivity {
            what: ConnectivityCommand::Test(args),
        } => {
            return runtime()?.block_on(doctor::connectivity::run(args));
        }
        Command::Plan(args) => {
            return runtime()?.block_on(plan::run(args));
        }
        // Any failure ends the command and is printed once, so no log is set up.
        Command::Why(args) => {
            return runtime()?.block_on(why::run(args));
        }
        Command::Up(args) if args.detach && !args.detached => match up::in_background(&args)? {
            Some(code) => std::process::exit(code),
            None => Ok(()),
        },
        Command::Up(args) => {
            // In the background, stderr becomes a log file, which must not have colours.
            let colours = !args.detached && out::colours_on(&std::io::stderr());
            log_to_stderr(args.verbose, colours);
            runtime()?.block_on(up::run(args))
        }
        Command::Apiserver(args) => {
            log_to_stderr(args.verbose, out::colours_on(&std::io::stderr()));
            runtime()?.block_on(apiserver::run(args))
        }
        Command::Nodes(args) => {
            log_to_stderr(args.verbose, out::colours_on(&std::io::stderr()));
            runtime()?.block_on(nodes::run(*args))
        }
        Command::Cloud(args) => {
            log_to_stderr(args.verbose, out::colours_on(&std::io::stderr()));
            runtime()?.block_on(cloud::run(args))
        }
        Command::Controller(args) => {
            controller::log(&args);
            return runtime()?.block_on(controller::run(*args));
        }
        Command::Fault(args) => runtime()?.block_on(fault::run(args)),
        Command::List { output } => clusters::list(output),
        Command::Status { which, output } => {
            return runtime()?.block_on(clusters::status::run(which.chosen(), output));
        }
        Command::Kubeconfig { which, kubeconfig } => {
            clusters::give_kubeconfig(which.chosen(), kubeconfig.as_deref())
        }
        Command::Delete { name, data_dir } => {
            let chosen = NamedCluster {
                name,
                directory: data_dir,
            };
            runtime()?.block_on(clusters::delete::run(chosen))
        }
        Command::Down(which) => runtime()?.block_on(clusters::down(which.chosen())),
        Command::Snapshot {
            what: SnapshotCommand::Save { file, which },
        } => runtime()?.block_on(snapshot::save(file, which.chosen())),
        Command::Snapshot {
            what: SnapshotCommand::Restore { file, which, force },
        } => snapshot::restore(file, which.chosen(), force),
        Command::Bench {
            what:
                Bench::Up {
                    nodes,
                    pods,
                    output,
                },
        } => {
            log_to_stderr(0, out::colours_on(&std::io::stderr()));
            runtime()?.block_on(bench::up(nodes, pods, output))
        }
        Command::Bench {
            what: Bench::Api(args),
        } => runtime()?.block_on(bench::api::run(&args)),
        Command::Bench {
            what: Bench::Engine(args),
        } => {
            log_to_stderr(0, out::colours_on(&std::io::stderr()));
            bench::engine::run(&args)
        }
        Command::Bench {
            what: Bench::Plan(args),
        } => runtime()?.block_on(bench::provision::run(&args)),
        Command::Bench {
            what: Bench::Consolidate(args),
        } => runtime()?.block_on(bench::consolidate::run(&args)),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "mullion", &mut script);
            out::line(String::from_utf8_lossy(&script).trim_end());
            Ok(())
        }
    };
    done.map(|()| true)
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let failed = |error| Failure::run(format!("the runtime cannot be started: {error}"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    #[cfg(unix)]
    survive_long_files(&runtime).map_err(failed)?;
    Ok(runtime)
}

/// Makes a write that `ulimit -f` forbids fail instead of ending the process, which happens if the signal has no handler.
#[cfg(unix)]
fn survive_long_files(runtime: &tokio::runtime::Runtime) -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    /// SIGXFSZ on Linux and macOS.
    const FILE_TOO_LARGE: i32 = 25;
    let _context = runtime.enter();
    signal(SignalKind::from_raw(FILE_TOO_LARGE)).map(drop)
}

/// Logs warnings to stderr, or more with `-v`; `RUST_LOG` takes precedence. With one `-v`, the log tells the story of the cluster; with
/// two, the work of each part, under its name.
fn log_to_stderr(verbose: u8, colours: bool) {
    tracing_subscriber::fmt()
        .with_env_filter(filter(verbose))
        .fmt_fields(logged::fields())
        .with_target(verbose > 1)
        .with_ansi(colours)
        .with_writer(std::io::stderr)
        .init();
}

/// Logs to stderr with one JSON object per line.
fn log_json_to_stderr(verbose: u8) {
    tracing_subscriber::fmt()
        .json()
        .with_env_filter(filter(verbose))
        .with_writer(std::io::stderr)
        .init();
}

fn filter(verbose: u8) -> EnvFilter {
    // kube's client logs every failed request, but the caller prints a sentence about it anyway.
    let level = match verbose {
        0 => "warn,kube_client::client::builder=off",
        1 => {
            "warn,kube_client::client::builder=off,mullion=info,mullion_apiserver=info,mullion_controllers=info,mullion_cloud=info"
        }
        2 => {
            "info,mullion=debug,mullion_apiserver=debug,mullion_controllers=debug,mullion_cloud=debug"
        }
        _ => "trace",
    };
    EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level))
}
