module dataloader

go 1.25
