"""A trained model to take away: a folder that answers new samples, with Protea or without.

program.py        a model and its answering rule as a list of torch's own operations, in plain JSON
preparation.py    from the numbers of a file to what the model was trained on
contents.py       what is known of a trained client: rule, samples, accuracy, privacy
card.py           the model card, and the lines that load the model without Protea
of_run.py         where the model of a run's client comes from
folder.py         writing the folder and reading it again
"""
