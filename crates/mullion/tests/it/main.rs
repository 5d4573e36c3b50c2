//! The program's integration tests, one binary: the import rules of the workspace, the command line, and whole clusters under a real kubectl.

mod import_rules;
