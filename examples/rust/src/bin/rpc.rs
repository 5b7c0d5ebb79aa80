//! RPC: a request says where its answer goes, and the answer which request it is for.

use firemq_client::{
    Client, Error, Properties, PublishOptions, QueueOptions, SubscribeOptions, Subscription,
};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::var("FIREMQ_URL").unwrap_or_else(|_| "fire://localhost".into());
    let server = Client::connect(&url).await?;
    server
        .declare_queue("rpc_queue.rust", QueueOptions::default())
        .await?;
    let requests = server
        .subscribe("rpc_queue.rust", SubscribeOptions::default())
        .await?;
    let serving = tokio::spawn(serve(server.clone(), requests));

    println!(" [.] square(7) = {}", square(&url, 7).await?);

    server.close().await?;
    match serving.await {
        Ok(Err(e)) if !matches!(e, Error::Closed(_)) => Err(e),
        _ => Ok(()),
    }
}

/// Squares numbers until the client is closed.
async fn serve(client: Client, mut requests: Subscription) -> Result<(), Error> {
    while let Some(request) = requests.next().await {
        let Some(n) = request.body_str().ok().and_then(|s| s.parse::<i64>().ok()) else {
            request.reject()?; // it never will be a number
            continue;
        };
        let answer = PublishOptions {
            persistent: false,
            properties: Properties {
                correlation_id: request.properties.correlation_id.clone(),
                ..Default::default()
            },
            ..Default::default()
        };
        let to = request.properties.reply_to.as_deref().unwrap_or_default();
        client
            .publish_with("", to, (n * n).to_string(), answer)
            .await?;
        request.ack()?;
    }
    Ok(())
}

/// Asks for the square of n.
async fn square(url: &str, n: i64) -> Result<String, Error> {
    let client = Client::connect(url).await?;
    let queue = client.declare_queue("", QueueOptions::temporary()).await?;
    let mut answers = client
        .subscribe(&queue.name, SubscribeOptions::default())
        .await?;
    let id = format!("{}-1", queue.name); // nobody else has this queue
    let request = PublishOptions {
        properties: Properties {
            reply_to: Some(queue.name.clone()),
            correlation_id: Some(id.clone()),
            ..Default::default()
        },
        ..Default::default()
    };
    client
        .publish_with("", "rpc_queue.rust", n.to_string(), request)
        .await?;
    while let Some(answer) = answers.next().await {
        answer.ack()?;
        if answer.properties.correlation_id.as_deref() == Some(&*id) {
            client.close().await?;
            return Ok(answer.body_str().unwrap_or_default().to_owned());
        }
    }
    Err(answers.error().cloned().unwrap_or(Error::Unsubscribed))
}
