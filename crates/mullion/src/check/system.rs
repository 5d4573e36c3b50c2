//! Operating systems, as label values name them.

use std::fmt;

/// An operating system of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum System {
    Linux,
    Windows,
}

impl System {
    /// Returns the system that a value of the label `kubernetes.io/os` names.
    pub(super) fn of_label(value: &str) -> Option<Self> {
        match value {
            "linux" => Some(System::Linux),
            "windows" => Some(System::Windows),
            _ => None,
        }
    }

    /// Returns the value of the label `kubernetes.io/os`.
    pub(super) fn label(self) -> &'static str {
        match self {
            System::Linux => "linux",
            System::Windows => "windows",
        }
    }

    pub(super) fn other(self) -> Self {
        match self {
            System::Linux => System::Windows,
            System::Windows => System::Linux,
        }
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            System::Linux => "Linux",
            System::Windows => "Windows",
        })
    }
}
