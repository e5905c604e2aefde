//! An object store as loads need it: objects and parts of them, in the pieces they come in.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    ClientOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ObjectStore,
    ObjectStoreScheme, RetryConfig,
};
use url::Url;

use super::bundle::BUNDLE_MAX;
use super::record::PAGE;
use super::view::{Held, View};

/// Bytes of the largest object that is read.
const OBJECT_MAX: u64 = BUNDLE_MAX + 2 * PAGE as u64;
/// Characters of a store's own words that are kept.
const SAID_MAX: usize = 400;
/// Hexadecimal digits of the name of a block, a bundle or a namespace, and those that are shown in messages.
const NAME_DIGITS: usize = 64;
const SHOWN_DIGITS: usize = 8;

impl Held for Bytes {
    fn bytes(&self) -> &[u8] {
        self
    }
}

pub struct Bucket(Box<dyn ObjectStore>);

impl Bucket {
    /// `given` has the store's settings under object_store's names; the rest is the environment's. One
    /// request takes no longer than `timeout`, and is tried twice. Errors are for people.
    pub fn open(url: &str, given: &[(String, String)], timeout: Duration) -> Result<Self, String> {
        // The first of a process stays; without one there is no TLS.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let at = Url::parse(url).map_err(|error| error.to_string())?;
        let (scheme, path) = ObjectStoreScheme::parse(&at).map_err(|error| error.to_string())?;
        let is_plain = given.iter().any(|(_, value)| value.starts_with("http://"));
        let client = ClientOptions::new()
            .with_timeout(timeout)
            .with_connect_timeout(timeout)
            .with_allow_http(is_plain);
        let retry = RetryConfig { max_retries: 1, ..RetryConfig::default() };
        macro_rules! opened {
            ($builder:ident) => {{
                let mut builder = $builder::from_env().with_url(url);
                for (name, value) in given {
                    let name = name.parse().map_err(|error: Error| said(&error))?;
                    builder = builder.with_config(name, value);
                }
                let built = builder.with_client_options(client).with_retry(retry).build();
                Box::new(built.map_err(|error| said(&error))?) as Box<dyn ObjectStore>
            }};
        }
        let store = match scheme {
            ObjectStoreScheme::AmazonS3 => opened!(AmazonS3Builder),
            ObjectStoreScheme::GoogleCloudStorage => opened!(GoogleCloudStorageBuilder),
            ObjectStoreScheme::MicrosoftAzure => opened!(MicrosoftAzureBuilder),
            ObjectStoreScheme::Local => {
                let folder = at.to_file_path().map_err(|()| format!("{url} is no directory"))?;
                let opened = LocalFileSystem::new_with_prefix(folder);
                return Ok(Self(Box::new(opened.map_err(|error| said(&error))?)));
            }
            _ => return Err(format!("{url} is no address of an object store")),
        };
        Ok(Self(if path.as_ref().is_empty() {
            store
        } else {
            Box::new(PrefixStore::new(store, path))
        }))
    }

    /// An object, or those bytes of it, fewer where it is shorter; None: there is none. `meanwhile` sees
    /// what is there each time that some more has come.
    pub async fn get(
        &self,
        path: &str,
        range: Option<(u64, u64)>,
        meanwhile: impl FnMut(&View),
    ) -> Result<Option<View>, String> {
        let at = Path::from(path);
        let part = range.map(|(from, to)| GetRange::Bounded(from..to));
        let got = self.0.get_opts(&at, GetOptions { range: part, ..GetOptions::default() }).await;
        match got {
            Ok(found) if found.range.end.saturating_sub(found.range.start) > OBJECT_MAX => {
                Ok(Some(View::default()))
            }
            Ok(found) => pieces(found, meanwhile).await.map(Some),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => match range {
                Some((_, end)) if self.ends_before(&at, end).await => Ok(Some(View::default())),
                _ => Err(said(&error)),
            },
        }
    }

    /// A range behind the end is refused: the object is at fault then, not the store.
    async fn ends_before(&self, at: &Path, end: u64) -> bool {
        let options = GetOptions { head: true, ..GetOptions::default() };
        self.0.get_opts(at, options).await.is_ok_and(|found| found.meta.size < end)
    }
}

/// All that was announced: no more is taken, and fewer bytes are the store's fault, not the object's.
async fn pieces(found: GetResult, mut meanwhile: impl FnMut(&View)) -> Result<View, String> {
    let announced = found.range.end.saturating_sub(found.range.start);
    let mut view = View::default();
    if matches!(found.payload, GetResultPayload::File(..)) {
        // A file's stream is one of very small pieces.
        view.push(found.bytes().await.map_err(|error| said(&error))?);
        return Ok(view);
    }
    let (mut stream, mut small) = (found.into_stream(), Vec::new());
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|error| said(&error))?;
        if (view.len() + small.len() + piece.len()) as u64 > announced {
            return Err(format!("more bytes came than the {announced} that were announced"));
        }
        // A view has about as many pieces as pages, however small the store cuts them.
        if small.is_empty() && piece.len() >= PAGE {
            view.push(piece);
        } else {
            small.extend_from_slice(&piece);
            if small.len() < PAGE {
                continue;
            }
            view.push(std::mem::take(&mut small));
        }
        meanwhile(&view);
    }
    if !small.is_empty() {
        view.push(small);
    }
    if (view.len() as u64) < announced {
        return Err(format!("{} of {announced} announced bytes came", view.len()));
    }
    Ok(view)
}

/// The first line of what a store says, which may be a page, and the cause where the line does not have it.
fn said(error: &Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(below) = cause.source() {
        cause = below;
    }
    let (whole, cause) = (error.to_string(), cause.to_string());
    let line = whole.trim().lines().next().unwrap_or_default();
    let cause = cause.trim().lines().next().filter(|cause| !line.contains(cause));
    let text = cause.map_or_else(|| line.to_string(), |cause| format!("{line}: {cause}"));
    shortened(&text).chars().take(SAID_MAX).collect()
}

/// Without most of the names in it, which are long and stand before what matters.
fn shortened(text: &str) -> String {
    let is_other = |c: char| !matches!(c, '0'..='9' | 'a'..='f');
    let short = |part: &str| match part.trim_end_matches(is_other).len() {
        NAME_DIGITS => format!("{}..{}", &part[..SHOWN_DIGITS], &part[NAME_DIGITS..]),
        _ => part.to_string(),
    };
    text.split_inclusive(is_other).map(short).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shortened_and_nothing_else() {
        let name = "0123456789abcdef".repeat(4);
        let text = format!("GET /p%2F{name}/ab/{name} in 9µs: {name}0 {name}");
        let short = format!("GET /p%2F01234567../ab/01234567.. in 9µs: {name}0 01234567..");
        assert_eq!(shortened(&text), short);
    }
}
