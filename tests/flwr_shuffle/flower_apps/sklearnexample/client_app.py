"""A Flower client of scikit-learn, rebuilt after Flower's ``examples/quickstart-sklearn`` (Apache-2.0)."""

import warnings

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.metrics import log_loss

from sklearnexample.task import (
    UNIQUE_LABELS,
    create_log_reg_and_instantiate_parameters,
    get_model_params,
    load_data,
    set_model_params,
)

# Flower ClientApp
app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    """Train the model on local data."""
    model = create_log_reg_and_instantiate_parameters()
    set_model_params(model, msg.content["arrays"].to_numpy_ndarrays())
    x_train, y_train, _, _ = load_data(context.node_config["partition-id"])

    # Ignore convergence failure due to low local epochs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x_train, y_train)

    train_logloss = log_loss(y_train, model.predict_proba(x_train), labels=UNIQUE_LABELS)
    metrics = {
        "num-examples": len(x_train),
        "train_logloss": train_logloss,
        "train_accuracy": model.score(x_train, y_train),
    }
    arrays = ArrayRecord(get_model_params(model))
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    """Evaluate the model on local data."""
    model = create_log_reg_and_instantiate_parameters()
    set_model_params(model, msg.content["arrays"].to_numpy_ndarrays())
    _, _, x_test, y_test = load_data(context.node_config["partition-id"])
    metrics = {"num-examples": len(x_test), "accuracy": model.score(x_test, y_test)}
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
