//! The authenticator of a server: the tokens and keys that it accepts, and the objects that tokens are bound to.

use std::{iter, sync::Arc};

use tokio::sync::mpsc::UnboundedSender;

use super::{
    key::SigningKey,
    public_key::{TokenKeys, VerifyingKey},
    secret_token::UsedSecret,
    service_account::VerifiedTokens,
    token_file::StaticTokens,
};
use crate::registry::Registry;

/// Knows the users of tokens.
pub(crate) struct Authenticator {
    registry: Arc<Registry>,
    static_tokens: StaticTokens,
    signing_key: SigningKey,
    token_keys: TokenKeys,
    used_secrets: UnboundedSender<UsedSecret>,
    verified_tokens: VerifiedTokens,
    audiences: Vec<String>,
}

impl Authenticator {
    /// Creates an authenticator. Uses of the tokens in Secrets are sent to `used_secrets`.
    pub(crate) fn new(
        registry: Arc<Registry>,
        static_tokens: StaticTokens,
        signing_key: SigningKey,
        token_keys: TokenKeys,
        issuer: String,
        used_secrets: UnboundedSender<UsedSecret>,
    ) -> Self {
        Authenticator {
            registry,
            static_tokens,
            signing_key,
            token_keys,
            used_secrets,
            verified_tokens: VerifiedTokens::default(),
            audiences: vec![issuer],
        }
    }

    /// Returns the registry that the objects of tokens are looked up in.
    pub(super) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Returns the static tokens.
    pub(super) fn static_tokens(&self) -> &StaticTokens {
        &self.static_tokens
    }

    /// Returns the key that signs service account tokens.
    pub(super) fn signing_key(&self) -> &SigningKey {
        &self.signing_key
    }

    /// Returns the keys that service account tokens may be signed with: the server's own first.
    pub(super) fn token_keys(&self) -> impl Iterator<Item = &VerifyingKey> {
        // The own key first: nearly all tokens are this server's.
        let own = self.signing_key.public();
        let others = self.token_keys.0.iter();
        iter::once(own).chain(others.filter(move |key| key.id() != own.id()))
    }

    /// Notes that the token of a Secret was used.
    pub(super) fn record_use(&self, used: UsedSecret) {
        // A server outside of a runtime records nothing.
        let _ = self.used_secrets.send(used);
    }

    /// Returns the cache of verified service account tokens.
    pub(super) fn verified_tokens(&self) -> &VerifiedTokens {
        &self.verified_tokens
    }

    /// Returns the issuer of service account tokens.
    pub(crate) fn issuer(&self) -> &str {
        &self.audiences[0]
    }

    /// Returns the audiences whose tokens the server accepts.
    pub(crate) fn audiences(&self) -> &[String] {
        &self.audiences
    }
}
