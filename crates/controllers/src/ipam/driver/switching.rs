//! Applies changes of the settings, and starts or stops the assignment of addresses.

use kube::ResourceExt;

use super::{super::node_state::unsupported, Driver, State, TimerKind, objects::is_windows};

impl Driver {
    /// Stops assigning addresses while AWS's controller holds its Lease, and resumes when it does not any more.
    pub(super) fn look_at_lease(&mut self) {
        let (has_changed, ends) = self.switches.look_at_lease(self.context.clock.steady());
        self.timers.set(TimerKind::Lease, ends);
        if has_changed {
            self.read_settings();
        }
    }

    pub(super) fn read_settings(&mut self) {
        let (read, now) = (self.switches.read(), self.now());
        if let Some(map) = self.switches.config_map() {
            for value in &read.unreadable {
                self.events.unreadable(&map, value, now);
            }
        }
        if read.settings == self.settings {
            return;
        }
        let before = std::mem::replace(&mut self.settings, read.settings);
        tracing::info!(
            on = read.settings.windows_ipam,
            prefixes = read.settings.prefix_delegation,
            left_to = self.switches.others(),
            "addresses of Windows pods: settings read"
        );
        if !self.settings.windows_ipam {
            // All state is dropped. It is loaded again when addresses are enabled.
            // Another controller may assign and return addresses meanwhile, so nothing that is known now
            // stays true.
            for name in std::mem::take(&mut self.nodes).into_keys() {
                self.forget_node(&name);
            }
            self.pods.clear();
        } else if !before.windows_ipam {
            for node in self.context.informers.nodes.list() {
                if is_windows(&node) {
                    self.look_at_node(&node.name_any().into());
                }
            }
        } else {
            let names: Vec<_> = self.nodes.keys().cloned().collect();
            for name in names {
                if let Some(State::Managed(node_state)) = self.nodes.get_mut(&name) {
                    if let Some((message, true)) =
                        unsupported(&node_state.facts, self.settings.kind(true))
                    {
                        self.events.unsupported(&node_state.node, message, now);
                    }
                    node_state.configure(&self.settings, now, &mut self.events);
                }
                self.touch(&name, None, now);
            }
        }
    }
}
