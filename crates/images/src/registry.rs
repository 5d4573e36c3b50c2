//! The registry protocol, as far as it is needed to read a manifest: manifest, challenge, token, config blob.
//!
//! An index is returned completely; no platform is chosen from it. Everything with a digest is verified against it.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use mullion_engine::images::{ImageRef, System};
use sha2::{Digest, Sha256, Sha512};

use crate::{
    challenge::{Challenge, TokenAnswer, token_target},
    dial::Dial,
    error::AskError,
    exchange::{Answer, Exchange, Origin},
    keyring::{Credentials, Keyring},
    manifest::{self, ACCEPT, Content, Manifest, UnknownPlatforms, Variant},
    settings::Settings,
};

/// The maximum number of images of an index whose sizes are requested.
const MOST_SIZES: usize = 16;
/// The maximum number of credentials that are tried for one image.
const MOST_TRIES: usize = 3;

/// The question to a registry.
#[derive(Clone, Copy)]
pub(crate) enum Question<'a> {
    /// The platforms of an image.
    Content,
    /// The sizes of the images of this index.
    Sizes(&'a Content),
    /// The sizes and programs of the Windows images of this index.
    Programs(&'a Content),
}

/// Remembers which hosts have asked for a pause.
pub(crate) trait Resting: Sync {
    /// Returns whether a host must not be asked at present.
    fn rests(&self, host: &str) -> bool;
    /// Records an error of a host, which may ask for a pause.
    fn heed(&self, host: &str, error: &AskError);
}

/// Asks the mirrors of an image's registry, then the registry itself, until one answers. Mirrors that asked for a pause are skipped; the
/// caller checks that for the registry itself.
///
/// # Errors
/// Returns the error of the last host that was asked.
pub(crate) async fn ask(
    dial: &Arc<dyn Dial>,
    settings: &Settings,
    image: &ImageRef,
    keyring: &Keyring,
    question: Question<'_>,
    resting: &dyn Resting,
) -> Result<Content, AskError> {
    let mut failure = AskError::NotFound {
        host: image.registry().to_owned(),
    };
    for endpoint in settings.endpoints(image.registry()) {
        let is_mirror = settings
            .mirrors
            .get(image.registry())
            .is_some_and(|mirrors| mirrors.contains(&endpoint));
        if is_mirror && resting.rests(&endpoint.host) {
            continue;
        }
        // Credentials for a registry must not be sent to its mirrors.
        let fitting = if is_mirror {
            keyring.at(&endpoint.host, image.path())
        } else {
            keyring.fitting(image)
        };
        let mut tries: Vec<_> = fitting.into_iter().take(MOST_TRIES).map(Some).collect();
        if tries.is_empty() {
            tries.push(None);
        }
        for credentials in tries {
            let mut client = RepositoryClient {
                exchange: Exchange::new(dial.clone(), settings, &endpoint.host),
                origin: Origin {
                    host: endpoint.host.clone(),
                    plain: endpoint.plain,
                },
                path: image.path(),
                credentials,
                authorization: None,
            };
            let answer = match question {
                Question::Content => client.content(image).await,
                Question::Sizes(content) => client.sizes(content.clone()).await,
                Question::Programs(content) => client.programs(content.clone()).await,
            };
            match answer {
                Ok(content) => return Ok(content),
                Err(error) => failure = error,
            }
            let host = if is_mirror {
                &endpoint.host
            } else {
                image.registry()
            };
            resting.heed(host, &failure);
            // Other credentials can help only if these were refused.
            if !matches!(failure, AskError::Unauthorized { .. }) {
                break;
            }
        }
    }
    Err(failure)
}

/// The requests about one repository to one host.
struct RepositoryClient<'a> {
    exchange: Exchange<'a>,
    origin: Origin,
    path: &'a str,
    credentials: Option<Credentials>,
    /// The header that the host has accepted.
    authorization: Option<HeaderValue>,
}

impl RepositoryClient<'_> {
    async fn content(&mut self, image: &ImageRef) -> Result<Content, AskError> {
        let reference = image.digest.as_deref().or(image.tag.as_deref());
        let reference = reference.unwrap_or("latest");
        let target = format!("/v2/{}/manifests/{reference}", self.path);
        let answer = self.get(&target, ACCEPT).await?;
        if let Some(digest) = &image.digest {
            self.verify(digest, &answer.body)?;
        }
        let media_type = answer.headers.get(header::CONTENT_TYPE);
        let media_type = media_type
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let media_type = media_type.split(';').next().unwrap_or_default().trim();
        let digest = image.digest.clone();
        let digest =
            digest.unwrap_or_else(|| format!("sha256:{}", hex(&Sha256::digest(&answer.body))));
        let variants = match manifest::read(media_type, &answer.body) {
            Manifest::Index(variants) => variants,
            Manifest::Single { config, bytes } => self.single(&config, &digest, bytes).await?,
            Manifest::Other(why) => Err(why),
        };
        Ok(Content { digest, variants })
    }

    /// Adds the sizes of the images of an index.
    async fn sizes(&mut self, mut content: Content) -> Result<Content, AskError> {
        let variants = content.variants.iter_mut().flatten();
        let unknown = variants.filter(|variant| variant.bytes.is_none());
        for variant in unknown.take(MOST_SIZES) {
            let target = format!("/v2/{}/manifests/{}", self.path, variant.digest);
            let answer = self.get(&target, ACCEPT).await?;
            self.verify(&variant.digest, &answer.body)?;
            if let Manifest::Single { bytes, .. } = manifest::read("", &answer.body) {
                variant.bytes = Some(bytes);
            }
        }
        Ok(content)
    }

    /// Adds the sizes and programs of the Windows images of an index.
    async fn programs(&mut self, mut content: Content) -> Result<Content, AskError> {
        let variants = content.variants.iter_mut().flatten();
        let unknown =
            variants.filter(|own| own.platform.system == System::Windows && own.program.is_none());
        for variant in unknown.take(MOST_SIZES) {
            let target = format!("/v2/{}/manifests/{}", self.path, variant.digest);
            let answer = self.get(&target, ACCEPT).await?;
            self.verify(&variant.digest, &answer.body)?;
            let Manifest::Single { bytes, config } = manifest::read("", &answer.body) else {
                continue;
            };
            variant.bytes = Some(bytes);
            if manifest::is_digest(&config) {
                let body = self.blob(&config).await?;
                variant.program = manifest::read_program(&body);
            }
        }
        Ok(content)
    }

    /// Fetches a blob by its digest and verifies it.
    async fn blob(&mut self, digest: &str) -> Result<Bytes, AskError> {
        let target = format!("/v2/{}/blobs/{digest}", self.path);
        let answer = self.get(&target, "*/*").await?;
        self.verify(digest, &answer.body)?;
        Ok(answer.body)
    }

    /// Reads the platform of a single image from its config blob.
    async fn single(
        &mut self,
        config: &str,
        digest: &str,
        bytes: u64,
    ) -> Result<Result<Vec<Variant>, UnknownPlatforms>, AskError> {
        if !manifest::is_digest(config) {
            return Ok(Err(UnknownPlatforms::NoDigest));
        }
        let body = self.blob(config).await?;
        let variant = manifest::read_config(&body).map(|(platform, os_version)| Variant {
            platform,
            os_version,
            digest: digest.to_owned(),
            bytes: Some(bytes),
            program: manifest::read_program(&body),
        });
        Ok(variant.map(|variant| vec![variant]))
    }

    /// Fetches a resource of the repository; sends credentials if the registry asks for them.
    async fn get(&mut self, target: &str, accept: &str) -> Result<Answer, AskError> {
        let authorization = self.authorization.clone();
        let answer = self
            .exchange
            .get(&self.origin, target, accept, authorization.as_ref())
            .await?;
        // A second refusal is final; answering challenges again could go on for ever.
        if answer.status != StatusCode::UNAUTHORIZED || authorization.is_some() {
            return self.accepted(answer);
        }
        let challenge = Challenge::of(&answer.headers).ok_or_else(|| self.unauthorized())?;
        let authorization = self.authorize(challenge).await?;
        let answer = self
            .exchange
            .get(&self.origin, target, accept, Some(&authorization))
            .await?;
        // Kept for the other requests of this image, which saves a challenge each.
        self.authorization = Some(authorization);
        self.accepted(answer)
    }

    async fn authorize(&mut self, challenge: Challenge) -> Result<HeaderValue, AskError> {
        let basic = self.credentials.as_ref().map(basic);
        let (realm, service) = match challenge {
            Challenge::Basic => return basic.ok_or_else(|| self.unauthorized()),
            Challenge::Bearer { realm, service, .. } => (realm, service),
        };
        let (at, target) = self.exchange.place(&self.origin, &realm)?;
        // The scope is computed here, not taken from the challenge, so that a registry cannot obtain a token for more than this repository.
        let scope = format!("repository:{}:pull", self.path);
        let target = token_target(&target, service.as_deref(), &scope);
        let answer = self
            .exchange
            .get(&at, &target, "application/json", basic.as_ref())
            .await?;
        let answer = self.accepted(answer)?;
        let token: Option<TokenAnswer> = serde_json::from_slice(&answer.body).ok();
        let token = token.and_then(TokenAnswer::token);
        let value = token.and_then(|token| HeaderValue::from_str(&format!("Bearer {token}")).ok());
        value.ok_or_else(|| AskError::Unexpected {
            host: at.host.clone(),
            what: "without a token".to_owned(),
        })
    }

    /// Returns a successful response, or converts its status to an error.
    fn accepted(&self, answer: Answer) -> Result<Answer, AskError> {
        let host = self.origin.host.clone();
        match answer.status {
            status if status.is_success() => Ok(answer),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(self.unauthorized()),
            StatusCode::NOT_FOUND => Err(AskError::NotFound { host }),
            status => Err(AskError::Unexpected {
                host,
                what: format!("with {status}"),
            }),
        }
    }

    fn unauthorized(&self) -> AskError {
        AskError::Unauthorized {
            host: self.origin.host.clone(),
        }
    }

    fn verify(&self, digest: &str, body: &[u8]) -> Result<(), AskError> {
        let actual = match digest.split_once(':') {
            Some(("sha256", _)) => format!("sha256:{}", hex(&Sha256::digest(body))),
            Some(("sha512", _)) => format!("sha512:{}", hex(&Sha512::digest(body))),
            _ => String::new(),
        };
        if actual.eq_ignore_ascii_case(digest) {
            Ok(())
        } else {
            Err(AskError::Unexpected {
                host: self.origin.host.clone(),
                what: format!("with something else than {digest}"),
            })
        }
    }
}

fn basic(credentials: &Credentials) -> HeaderValue {
    let Credentials { user, password } = credentials;
    let encoded = STANDARD.encode(format!("{user}:{password}"));
    let mut value = HeaderValue::from_str(&format!("Basic {encoded}"))
        .expect("base64 has no characters that a header forbids");
    value.set_sensitive(true);
    value
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
