//! Lists the checks of each level by the version of Kubernetes. A namespace may ask for the rules of an older version than the server's.

use super::{Pod, Violation, baseline as base, restricted as strict};

/// A rule, which returns how a pod violates it, or `None`.
pub(super) type Rule = fn(&Pod<'_>) -> Option<Violation>;

/// A check by the versions that brought or changed it.
pub(super) struct Check {
    /// Minor versions and the rule from then on, oldest first.
    rules: &'static [(u32, Rule)],
    /// The minor version since which the restricted level has a stricter check instead.
    overridden: Option<u32>,
}

impl Check {
    const fn new(rules: &'static [(u32, Rule)]) -> Self {
        Check {
            rules,
            overridden: None,
        }
    }

    const fn overridden(rules: &'static [(u32, Rule)], since: u32) -> Self {
        Check {
            rules,
            overridden: Some(since),
        }
    }

    /// Returns the rule of a version, or `None` for versions from before the check.
    pub(super) fn at(&self, minor: u32) -> Option<Rule> {
        let mut rules = self.rules.iter().rev();
        rules
            .find(|(since, _)| *since <= minor)
            .map(|(_, rule)| *rule)
    }

    pub(super) fn is_overridden(&self, minor: u32) -> bool {
        self.overridden.is_some_and(|since| since <= minor)
    }
}

/// The baseline level, in the order of upstream's ids, which is the order of the reasons in an answer.
pub(super) const BASELINE: &[Check] = &[
    Check::new(&[(0, base::app_armor)]),
    Check::overridden(&[(0, base::capabilities)], 22),
    Check::new(&[(0, base::host_namespaces)]),
    Check::overridden(&[(0, base::host_path_volumes)], 0),
    Check::new(&[(0, base::host_ports)]),
    Check::new(&[(34, base::probe_hosts)]),
    Check::new(&[(0, base::privileged)]),
    Check::overridden(&[(0, base::proc_mount), (35, base::proc_mount_1_35)], 35),
    Check::new(&[(0, base::se_linux), (31, base::se_linux_1_31)]),
    Check::overridden(
        &[(0, base::seccomp_annotations), (19, base::seccomp_profile)],
        19,
    ),
    Check::new(&[
        (0, base::sysctls),
        (27, base::sysctls_1_27),
        (29, base::sysctls_1_29),
        (32, base::sysctls_1_32),
    ]),
    Check::new(&[(0, base::host_process)]),
];

/// The checks of the restricted level that baseline does not have, in the order of upstream's ids.
pub(super) const RESTRICTED: &[Check] = &[
    Check::new(&[
        (8, strict::privilege_escalation),
        (25, strict::privilege_escalation_1_25),
    ]),
    Check::new(&[(22, strict::capabilities), (25, strict::capabilities_1_25)]),
    Check::new(&[(35, base::proc_mount)]),
    Check::new(&[(0, strict::volumes)]),
    Check::new(&[
        (0, strict::run_as_non_root),
        (35, strict::run_as_non_root_1_35),
    ]),
    Check::new(&[(23, strict::run_as_user), (35, strict::run_as_user_1_35)]),
    Check::new(&[(19, strict::seccomp), (25, strict::seccomp_1_25)]),
];
