//! The program's integration tests, one binary: the import rules of the workspace, the command line, and whole clusters under a real kubectl.

mod apiserver;
mod check;
mod clients;
mod cluster;
mod command_line;
mod commands;
mod crash;
mod deploy;
mod disks;
mod every_kubectl;

mod flows;
mod import_rules;
#[path = "../installed/mod.rs"]
mod installed;
mod kubectl;
mod plan;
mod process;
mod registry;
mod why;
