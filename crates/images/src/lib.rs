//! Asks registries about container images: the platforms that an image runs on, and its size.
//!
//! Start at [`Registries`]: [`Registries::cached`] answers from memory, [`Registries::fetch`] asks the registry and takes at most a second.
//! The modules are the cache, the registry protocol (`registry`), HTTP with limits (`exchange`), and the connections (`dial`), which refuses
//! addresses that no registry has. [`Settings`] says which registries may be asked; [`Keyring`] has the credentials of one pod.
//!
//! Invariant: no response of a registry makes this program read more than 4 MiB, follow more than three redirects, connect to a link-local
//! address, or send credentials along a redirect to another host.

mod cache;
mod challenge;
mod dial;
mod error;
mod exchange;
mod keyring;
mod manifest;
mod registries;
mod registry;
mod settings;

pub use dial::{Dial, Dialing, Io, SystemDial};
pub use error::AskError;
pub use keyring::{Credentials, Keyring};
pub use manifest::{Content, Program, UnknownPlatforms, Variant};
pub use registries::{ImageLookup, Registries};
pub use settings::{Settings, SettingsError};
